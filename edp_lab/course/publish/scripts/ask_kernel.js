// What the kernel prints for a piece of code, after all that was sent to it before.
const kernel = window.notebook.sessionContext.session.kernel;
const future = kernel.requestExecute({code: arguments[0], store_history: false});
let text = "";
future.onIOPub = message => {
    if (message.header.msg_type == "stream") text += message.content.text;
    if (message.header.msg_type == "error") text += message.content.ename + ": " + message.content.evalue;
};
return future.done.then(() => text);

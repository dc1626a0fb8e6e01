// Once JupyterLab has loaded: opens a notebook, closes the file browser, executes all cells, and waits for the figures.
// Errors that Jupyter would swallow, such as those of callbacks, are written to the console.
const openNotebook = async path => {
    const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
    const undrawn = () => [...document.querySelectorAll(".edp-figure")].some(figure => !figure.querySelector(".main-svg"));
    while (!window.jupyterapp?.shell) await pause(50);
    const app = window.jupyterapp;
    await app.restored;
    app.shell.collapseLeft();
    window.notebook = await app.commands.execute("docmanager:open", {path});
    await window.notebook.revealed;
    await window.notebook.sessionContext.ready;
    window.notebook.sessionContext.session.kernel.iopubMessage.connect((_, { header, content }) => {
        if (header.msg_type == "error") console.error(`${content.ename}: ${content.evalue}`);
    });
    await app.commands.execute("notebook:run-all-cells");
    while (undrawn()) await pause(50);
};
const askKernel = code => {
    const future = window.notebook.sessionContext.session.kernel.requestExecute({code, store_history: false});
    let text = "";
    future.onIOPub = message => {
        if (message.header.msg_type == "stream") text += message.content.text;
        if (message.header.msg_type == "error") text += `${message.content.ename}: ${message.content.evalue}`;
    };
    return future.done.then(() => text);
};

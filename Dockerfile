# The course in JupyterLab, without CUDA:
#   docker build -t edp-lab .
#   docker run --rm -it -p 127.0.0.1:8888:8888 -v edp-lab:/home/student/edp-lab-course edp-lab
# Open the address that it prints, which contains a token. The volume (-v) keeps one student's notebooks between runs.
FROM python:3.11-slim AS build
COPY . /edp-lab
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel /edp-lab

FROM python:3.11-slim
# With CUDA: docker build --build-arg TORCH_INDEX=https://pypi.org/simple -t edp-lab .
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt /wheel/
RUN pip install --no-cache-dir --no-deps --index-url "$TORCH_INDEX" -c /wheel/constraints.txt torch
COPY --from=build /wheel /wheel
RUN pip install --no-cache-dir -c /wheel/constraints.txt /wheel/*.whl
RUN useradd --create-home student && install -d -o student /home/student/edp-lab-course
USER student
WORKDIR /home/student
EXPOSE 8888
CMD ["edp-lab", "course", "lab", "--ip=0.0.0.0", "--no-browser"]

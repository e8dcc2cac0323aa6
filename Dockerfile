# The server, for each processor that the wheel is for, with models at /models:
#   docker build -t pyllama-spec .
#   docker build -t pyllama-spec:cu130 --build-arg BACKEND=cu130 .    # and then: docker run --gpus all
ARG BACKEND=cpu

FROM python:3.12-slim AS build-cpu
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS build-cu130

FROM build-${BACKEND} AS build
ARG BACKEND
RUN apt-get update && apt-get install -y --no-install-recommends g++ make python3-dev python3-venv
COPY . /source
RUN make -C /source wheel BACKEND="${BACKEND#cpu}"

FROM python:3.12-slim
ARG BACKEND
COPY --from=build /source/dist* /wheels/
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[server]" \
        $([ "$BACKEND" = cpu ] || echo nvidia-cublas nvidia-cuda-runtime) \
    && rm -r /wheels && useradd --create-home server
USER server
WORKDIR /models
EXPOSE 8000
ENTRYPOINT ["pyllama-spec"]

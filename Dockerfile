# kunicorn. Your handler on top of it: docs/operations.md, "The image".
#
# `docker build .` makes the service, `docker build --target arrow .` the one with pyarrow for handlers of columns,
# `docker build --target pipeline .` the one with Java for `kunicorn pipeline`.
# What is installed, and how, is deploy/image/build.sh, which the tests run, too. With
# `docker buildx build --sbom=true --provenance=mode=max` the image carries what it is made of, and how it was made.

# Bases by their digests: the same ones for whoever builds this commit. Python 3.11.16 and Rust 1.95; newer ones:
# docker buildx imagetools inspect python:3.11-slim-bookworm
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS base

# The decoder of columns is compiled here, and its wheel alone goes on: no toolchain is in the images.
FROM rust:1.95-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082 AS rust

FROM base AS columns
ENV PIP_NO_CACHE_DIR=1 RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:$PATH
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=rust /usr/local/rustup /usr/local/rustup
COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY requirements-columns.lock /src/
RUN pip install --require-hashes -r /src/requirements-columns.lock
COPY service/columns /src/service/columns
RUN maturin build --release --manifest-path /src/service/columns/Cargo.toml --out /wheels

FROM base AS build
ENV PIP_NO_CACHE_DIR=1
COPY requirements.lock requirements-build.lock requirements-arrow.lock requirements-pipeline.lock pyproject.toml README.md LICENSE /src/
COPY deploy/image/build.sh /src/deploy/image/
COPY service /src/service
COPY --from=columns /wheels /src/wheels
RUN /src/deploy/image/build.sh /src /opt/kunicorn

FROM build AS build-arrow
RUN /src/deploy/image/build.sh /src /opt/kunicorn arrow && /opt/kunicorn/bin/python -c 'import pyarrow'

FROM build AS build-pipeline
RUN /src/deploy/image/build.sh /src /opt/kunicorn pipeline && /opt/kunicorn/bin/python -c 'import pyspark'

FROM base AS runtime
# jemalloc, which workers.allocator = "auto" looks for. Unpinned: Debian keeps one version of a package, the newest.
# Nothing that installs is left: neither pip and setuptools of the base, nor the wheels that ensurepip would make them of.
# Not 'pip*': Python's own module pipes has such a name.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends libjemalloc2 \
    && rm -rf /var/lib/apt/lists/* \
    && find /usr/local/lib /usr/local/bin -maxdepth 3 \( -name pip -o -name 'pip-*' -o -name 'pip[0-9]*' \
       -o -name 'setuptools*' -o -name 'wheel*' -o -name ensurepip -o -name pkg_resources \
       -o -name _distutils_hack -o -name distutils-precedence.pth \) \
       -exec rm -rf {} +
# A number, so that Kubernetes can tell that it is not root.
RUN groupadd --gid 10001 kunicorn && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp kunicorn
# Version, revision and source are the release's to tell: --label org.opencontainers.image.revision=…
LABEL org.opencontainers.image.title="kunicorn" \
      org.opencontainers.image.description="One member of a Kafka consumer group, with many worker processes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"
ENV PATH=/opt/kunicorn/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1 \
    KUNICORN_CONFIG=/etc/kunicorn/config/config.toml
WORKDIR /app
EXPOSE 9400
STOPSIGNAL SIGTERM
# No shell and no init in between: kunicorn is PID 1, gets the signals and reaps what is left to it.
ENTRYPOINT ["kunicorn"]
CMD ["run"]

FROM runtime AS pipeline
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
ENV SPARK_LOCAL_DIRS=/tmp
COPY --from=build-pipeline /opt/kunicorn /opt/kunicorn
COPY deploy/image/entrypoint.sh /opt/
USER 10001:10001
# Spark starts its drivers' and executors' pods of the same image.
ENTRYPOINT ["/opt/entrypoint.sh"]

FROM runtime AS arrow
COPY --from=build-arrow /opt/kunicorn /opt/kunicorn
USER 10001:10001

FROM runtime AS service
COPY --from=build /opt/kunicorn /opt/kunicorn
USER 10001:10001

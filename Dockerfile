# kunicorn, and your handler on top of it:
#
#   FROM kunicorn
#   COPY --chown=root requirements.txt shop /app/
#   RUN pip install --no-cache-dir -r /app/requirements.txt
#
# `docker build .` makes the service, `docker build --target pipeline .` the one with Java for `kunicorn pipeline`.
# What is installed, and how, is deploy/image/build.sh, which the tests run, too.

FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1
COPY requirements.lock requirements-dev.lock pyproject.toml README.md /src/
COPY deploy/image/build.sh /src/deploy/image/
COPY service /src/service
RUN /src/deploy/image/build.sh /src /opt/kunicorn

FROM build AS build-pipeline
RUN /src/deploy/image/build.sh /src /opt/kunicorn pipeline && /opt/kunicorn/bin/python -c 'import pyspark'

FROM python:3.11-slim-bookworm AS runtime
# jemalloc, which workers.allocator = "auto" looks for. Unpinned: Debian keeps one version of a package, the newest.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends libjemalloc2 \
    && rm -rf /var/lib/apt/lists/*
# A number, so that Kubernetes can tell that it is not root.
RUN groupadd --gid 10001 kunicorn && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp kunicorn
ENV PATH=/opt/kunicorn/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
EXPOSE 9400
STOPSIGNAL SIGTERM
# No shell and no init in between: kunicorn is PID 1, gets the signals and reaps what is left to it.
ENTRYPOINT ["kunicorn"]
CMD ["run", "--config", "/etc/kunicorn/config/config.toml"]

FROM runtime AS pipeline
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
ENV SPARK_LOCAL_DIRS=/tmp
COPY --from=build-pipeline /opt/kunicorn /opt/kunicorn
USER 10001:10001

FROM runtime AS service
COPY --from=build /opt/kunicorn /opt/kunicorn
USER 10001:10001

# An image with agentctl and what it needs to run agents from a pod: git, ssh and certificates. Its
# context is an unpacked archive of a release, which has this file:
#
#   docker build --tag agentctl --file docker/agentctl.Dockerfile .
FROM debian:trixie-slim
RUN apt-get update && \
    apt-get install --yes --no-install-recommends ca-certificates git openssh-client && \
    rm -rf /var/lib/apt/lists/*
COPY agentsh agentctl /usr/bin/
COPY LICENSE THIRD_PARTY_NOTICES /usr/share/doc/agentsh/
RUN useradd --uid 1000 --no-create-home --home-dir /work/home agent
USER 1000:1000
ENTRYPOINT ["/usr/bin/agentctl"]

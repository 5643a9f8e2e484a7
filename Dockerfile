# An environment behind OpenEnv's protocol; docs/openenv.md has the commands.
FROM python:3.11-slim

# What `python -m envs install` takes: bfcl, appworld, or both. Empty installs nothing, which the cabinets need.
ARG BACKENDS="bfcl"

RUN useradd --uid 1000 --create-home player
WORKDIR /home/player
COPY --chown=1000 . project
RUN pip install --no-cache-dir -c project/requirements/lock.txt "./project[openenv]"

# Backends and their data lie in the user's cache. The server and the worlds run as this user, too.
USER 1000
RUN test -z "$BACKENDS" || python -m envs install $BACKENDS --no-data

EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
# Without EH_ENV_TOKEN the server refuses to begin: other machines can reach it.
ENTRYPOINT ["python", "-m", "envs", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["EH-BFCL-v0"]

"""Superset's settings: a folder of its own on this machine, named by SUPERSET_HOME, and nothing that calls home."""

import os
from pathlib import Path

HOME = Path(os.environ["SUPERSET_HOME"])
SECRET_KEY = (HOME / "secret_key").read_text()
SQLALCHEMY_DATABASE_URI = f"sqlite:///{HOME / 'superset.db'}"
# A dataset is one SELECT of a chart; the server behind it takes statements that read and no others.
# First answers of a server that has just started take minutes on a busy machine.
SQLLAB_TIMEOUT = 300
SUPERSET_WEBSERVER_TIMEOUT = 300
# The boards' filters are written into their SQL.
FEATURE_FLAGS = {"ENABLE_TEMPLATE_PROCESSING": True}
# Pages are the machine's own, without TLS.
TALISMAN_ENABLED = False
SESSION_COOKIE_SAMESITE = "Strict"
# Warnings that a person needs are shown; its start isn't.
LOG_LEVEL = "ERROR"
CONTENT_SECURITY_POLICY_WARNING = False

"""A job's settings with a secret in them."""

from __future__ import annotations

SECRET = "vErYsEcReT"
CONFIG = f"""
[kafka]
bootstrap_servers = ["127.0.0.1:9092"]
security_protocol = "SASL_PLAINTEXT"
sasl_mechanism = "SCRAM-SHA-512"
sasl_username = "orders"
sasl_password = "{SECRET}"
[group]
id = "orders"
topics = ["orders"]
[handler]
entrypoint = "shop.handlers:handle"
"""

"""Kafka clients made of the settings, for commands, jobs and checks: processes that question the cluster and are not
the service.
"""

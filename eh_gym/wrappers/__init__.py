"""Wrappers."""

from eh_gym.wrappers.elastic_time_limit import ElasticTimeLimit

__all__ = ["ElasticTimeLimit"]

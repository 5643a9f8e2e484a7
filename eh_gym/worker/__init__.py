"""Backends in virtualenvs of their own, called over stdin and stdout."""

from eh_gym.worker.pool import Session, WorkerPool, close_shared_pools, shared_pool
from eh_gym.worker.process import Worker, backend_command

__all__ = ["Session", "Worker", "WorkerPool", "backend_command", "close_shared_pools", "shared_pool"]

"""``python held_run.py`` is ``python -m harness.grpo``, but waits to be killed before the last update's row.

Else it might end, on a busy machine, before a test that watches it kills it.
"""

import time

from harness import grpo
from harness.records.metrics import MetricsLog
from harness.training import carry_out

train, write = carry_out.train_loop, MetricsLog.write
last = -1


def held_train(config, *rest, **settings):
    global last
    last = config.updates - 1
    return train(config, *rest, **settings)


def held_write(log, update, metrics):
    if update == last:
        time.sleep(600)  # and no longer: the test may be gone
    write(log, update, metrics)


carry_out.train_loop, MetricsLog.write = held_train, held_write
grpo.main()

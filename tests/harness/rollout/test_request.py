"""Whoever plays a request, its episode begins alike."""

import pkgutil
from unittest import mock

import pytest

from eh_gym.registration import ENTRY_POINTS
from envs.description import description_of
from harness.evaluation.endpoint import EndpointReply
from harness.evaluation.play import SCRIPTS, evaluation_requests, held_out_tasks, play_policy, play_script
from harness.evaluation.play_endpoint import play_with_endpoint
from harness.rollout.environment import Environments
from harness.settings.rollout import Rollout


@pytest.mark.parametrize("env_id", ENTRY_POINTS)
def test_every_player_begins_a_request_with_the_same_seed(env_id, fake, installed):
    about = description_of(env_id)
    installed(env_id)
    environments = Environments(env_id, {"split": about.test_split}, slots=1, threads=0)
    requests = evaluation_requests(held_out_tasks(environments, 2), 2, seed=7)
    endpoint = mock.AsyncMock()
    endpoint.reply.return_value = EndpointReply("", {}, "")
    kind = pkgutil.resolve_name(ENTRY_POINTS[env_id])
    with mock.patch.object(kind, "reset", autospec=True, side_effect=kind.reset) as reset:
        for script in SCRIPTS:
            play_script(script, environments, requests, Rollout(), horizon=1)
        play_with_endpoint(lambda: endpoint, environments, requests, Rollout(), horizon=1)
        play_policy(environments, fake.Sampler(), fake.Chat(), requests, Rollout(), horizon=1)
    asked = [request.reset_arguments() for request in requests]
    assert [call.kwargs for call in reset.call_args_list] == asked * (len(SCRIPTS) + 2)

"""The same agent with other clients: it looks until it knows a code, and submits it. ``python clients.py CLIENT``."""

import json
import os
import sys
from typing import Literal

QUESTION = "Look until you see the code. Then submit it."


class Drawer:
    """What the agents' functions do."""

    submitted = ""

    def look(self) -> str:
        """Looks into the drawer."""
        return "nothing yet"

    def submit(self, code: str) -> str:
        """Submits the code."""
        self.submitted = str(code)
        return "done"


def instructor(drawer: Drawer, url: str):
    import instructor
    import openai
    from pydantic import BaseModel

    class Action(BaseModel):
        name: Literal["look", "submit"]
        code: str = ""

    client = instructor.from_openai(openai.OpenAI(base_url=url, api_key="any"), mode=instructor.Mode.JSON)
    messages = [{"role": "user", "content": QUESTION}]
    while not drawer.submitted:
        action = client.create(model="policy", response_model=Action, messages=messages)
        result = drawer.look() if action.name == "look" else drawer.submit(action.code)
        messages += [{"role": "assistant", "content": action.model_dump_json()}, {"role": "user", "content": result}]


def dspy(drawer: Drawer, url: str):
    import dspy

    with dspy.context(lm=dspy.LM("openai/policy", api_base=url, api_key="any", cache=False)):
        drawer.submit(dspy.ReAct("question -> code", tools=[drawer.look], max_iters=100)(question=QUESTION).code)


if __name__ == "__main__":
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    drawer = Drawer()
    globals()[sys.argv[1]](drawer, os.environ["OPENAI_BASE_URL"])
    print(json.dumps({"reward": drawer.submitted == "73"}))

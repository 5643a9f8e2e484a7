import pytest

from envs.bfcl.backend.calls import DecodeError, PlainCall, decode_python
from envs.bfcl.backend.execution import execute
from envs.bfcl.backend.limits import TOO_LONG


@pytest.mark.parametrize(
    ("most", "more"),
    [
        *(("'x' * 10000", "'x' * 10001"), ("10000 * 'x'", "10001 * 'x'"), ("1" + " + 0" * 20, "1" + " + 0" * 21)),
        *(("2 ** 64", "2 ** 65"), ("2 ** -64", "2 ** -65"), ("1000000 ** 2", "1000001 ** 2"), ("7 % 5", "'7' % 5")),
    ],
)
def test_arithmetic_is_carried_out_within_limits(most, more):
    assert decode_python(f"[f(a={most})]") == [PlainCall("f", {"a": eval(most)})]
    with pytest.raises(DecodeError):
        decode_python(f"[f(a={more})]")


@pytest.mark.parametrize("name", ["say", "error"])
def test_a_result_and_an_error_may_fill_the_room_that_is_left(name):
    call, methods = PlainCall(name, {}), {"say": lambda: "x" * 50}
    text = execute(call, methods, nested=False)
    assert execute(call, methods, len(text), nested=False) == text
    assert TOO_LONG in execute(call, methods, len(text) - 1, nested=False)


def test_powers_have_limits():
    methods = {"power": lambda base, exponent: "done"}
    cases = (2**399, 500, "done"), (2**408, 489, "bits"), (1, 10000, "done"), (1, -10001, "exponent")
    for base, exponent, said in cases:
        assert said in execute(PlainCall("power", {"base": base, "exponent": exponent}), methods)

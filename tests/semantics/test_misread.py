"""What transformers 5.24.0 does not read is refused or noted, never taken silently.

The frequencies are those of transformers 5.24.0's rotary modules, to five digits
(test_misread_oracle.py asks the live ones).
"""

from __future__ import annotations

import pytest
from little_configs import FILE, reading
from misread_configs import NOTED, READ, REFUSED

from packimport.errors import DocumentError
from packimport.rope.frequencies import frequencies


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    value, pointer = REFUSED[name]
    with pytest.raises(DocumentError) as caught:
        reading(value)
    assert str(caught.value).startswith(f"{FILE}#{pointer}: ")


@pytest.mark.parametrize("name", NOTED)
def test_noted(name: str) -> None:
    value, pointer = NOTED[name]
    assert any(f"{FILE}#{pointer} " in note for note in reading(value).notes)


@pytest.mark.parametrize("name", READ)
def test_read_as_transformers_does(name: str) -> None:
    value, theta, second = READ[name]
    (rope,) = set(reading(value).layers)
    assert rope is not None
    assert rope.theta == theta
    assert frequencies(rope).inv_freq[1] == pytest.approx(second, rel=1e-5)


def test_a_value_that_stands_anyway_is_read() -> None:
    value = {**REFUSED["gpt-neox-theta"][0], "rope_theta": 10000}
    assert reading(value).notes == ()
    value = {**REFUSED["olmo3-theta"][0], "rope_theta": 500000}
    assert reading(value).notes == ()
    value = {**NOTED["mimo-theta"][0], "rope_theta": 5000000, "swa_rope_theta": 10000}
    assert reading(value).notes == ()


def test_a_latent_head_of_the_slice_has_no_note() -> None:
    value = {**NOTED["latent-head"][0], "head_dim": 32}
    assert reading(value).notes == ()

"""What all sections of recipes and cards share: strictness, and the kinds of numbers that their fields hold."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_MOST = 10**9  # steps, rows, tokens: far more than anybody trains, and far from what overflows
PositiveInt = Annotated[int, Field(ge=1, le=_MOST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Vocabulary = Annotated[int, Field(ge=8, le=10**7)]
Width = Annotated[int, Field(ge=1, le=2**16)]  # the product of two, in bytes, is what one machine can hold
Layers = Annotated[int, Field(ge=1, le=1000)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


# What a key of a recipe changes, beside its type: which checkpoints there are, which is chosen and how it answers; or
# nothing of what is found. A key without either changes what a step computes.
CHOICE, NOTHING = "choice", "nothing"


class Section(BaseModel):
    """A part of a recipe: immutable, strictly typed, with no unknown keys and no infinite numbers or NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def keys_changing(section: Section, *what: str, prefix: str = "", whole: str = "") -> set[str]:
    """Return the keys that change a ``CHOICE`` or ``NOTHING``, as ``--set`` takes them; a section's says so of all."""
    keys = set()
    for name, field in type(section).model_fields.items():
        effect = next((each for each in field.metadata if each in (CHOICE, NOTHING)), whole)
        value = getattr(section, name)
        if isinstance(value, Section):
            keys |= keys_changing(value, *what, prefix=f"{prefix}{name}.", whole=effect)
        elif effect in what:
            keys.add(prefix + name)
    return keys

"""Save a model with PHM weights, and fill a fresh model from the folder."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from phmctl.checkpoints import check_fit, first_names, model_tensors, read_tensors, save_tensors
from phmctl.errors import RunError, UserError, require
from phmctl.files import FORMAT, read_json_object, read_seal, replacing, seal, verify
from phmctl.nn.convert import conversions
from phmctl.nn.parametrization import Kronecker, attach, compute_flat_weights, restore

MODEL, MANIFEST, CONFIG = "model.safetensors", "phm.json", "config.json"  # the config of a model of transformers
_ADVICE = "save the model again with phmctl.save(model, folder)"
Model = TypeVar("Model", bound=nn.Module)


def save(model: nn.Module, folder: Path | str) -> None:
    """Write the tensors of a model and the arguments of its conversion into a folder, for :func:`load_into`.

    Args:
        model: a converted model, or any module with PHM layers.
        folder: a new or empty folder, or an earlier one of this function, which is replaced.

    Raises:
        UserError: the model is on the meta device, or its state has parts that are not tensors.
        OutputError: the folder cannot be written, or has other files.
    """
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor) or value.is_meta:
            raise UserError(f"{name} of the model is not a tensor with values, and cannot be saved")
    with replacing(Path(folder), MANIFEST) as temporary:
        # Clones, because safetensors refuses tensors that share memory.
        save_tensors(temporary / MODEL, {name: tensor.clone() for name, tensor in model_tensors(model).items()})
        config: Any = getattr(model, "config", None)
        if hasattr(config, "to_diff_dict"):
            config.save_pretrained(temporary)
        seal(temporary, MANIFEST, {"format": FORMAT, "weights": conversions(model)})


@torch.no_grad()
def load_into(model: Model, folder: Path | str) -> Model:
    """Fill a model from a folder of :func:`save`, or of ``save_pretrained`` of a converted `transformers` model.

    Args:
        model: a fresh model of the same class and sizes. It is converted in the same way, unless it is already, and its
            parameters and buffers get the saved values. PHM layers that were made by hand must be in it.
        folder: the folder.

    Returns:
        `model` itself.

    Raises:
        RunError: a file is missing, damaged or of another model; the model is unchanged.
        UserError: the model is on the meta device, or converted in another way.
    """
    folder = Path(folder)
    records, stored = _read(folder)
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        raise UserError("the model is on the meta device; make it on another one, or call model.to_empty(device=...)")
    present = conversions(model)
    if present and present != records:
        raise UserError(f"the model is already converted, but not as in {folder}; load into a fresh dense model")
    dense_weights = {} if present else _parametrize(model, records, stored)
    first = first_names(model.state_dict(keep_vars=True))
    for name in [name for name in stored if first.get(name, name) not in stored]:
        stored[first[name]] = stored.pop(name)  # save_pretrained keeps one name of a tied tensor, not always the first
    try:
        check_fit(model_tensors(model), stored, folder)
    except RunError:
        for (owner, key), weight in dense_weights.items():
            restore(owner, key, weight)
        raise
    for owner in {owner for owner, _ in dense_weights if isinstance(owner, nn.RNNBase)}:
        compute_flat_weights(owner)
    for name, tensor in model_tensors(model).items():
        tensor.copy_(stored[name])
    return model


def from_pretrained(cls: type[Any], folder: Path | str) -> Any:
    """Return a converted model of `transformers` from its folder, in evaluation mode.

    Args:
        cls: the model's class, or one such as ``AutoModelForCausalLM``.
        folder: a folder of its ``save_pretrained`` or of :func:`save`.

    Raises:
        MissingExtraError: `transformers` is not installed.
        RunError: a file is missing, damaged or of another class.
    """
    library, folder = require("transformers", "huggingface"), Path(folder)
    read_json_object(folder / CONFIG, RunError, _ADVICE)  # transformers would look for a missing folder on its hub
    config = getattr(cls, "config_class", library.AutoConfig).from_pretrained(folder)
    build = getattr(cls, "_from_config", None) or cls.from_config
    model = load_into(build(config), folder)
    if (folder / "generation_config.json").is_file():
        model.generation_config = library.GenerationConfig.from_pretrained(folder)
    return model.eval()


def _read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return the records of :func:`conversions` and the tensors of a folder. Raises RunError."""
    if (folder / CONFIG).is_file() and not (folder / MANIFEST).exists():
        description = read_json_object(folder / CONFIG, RunError, _ADVICE).get("quantization_config") or {}
    else:
        description = read_seal(folder / MANIFEST, RunError, _ADVICE)
        if description.get("format") != FORMAT:
            raise RunError(f"{folder} has format {description.get('format')}, not {FORMAT}; {_ADVICE}")
        verify(folder, description["files"], RunError, _ADVICE)
    shards = sorted(folder.glob("model*.safetensors"))
    tensors = {name: tensor for path in shards for name, tensor in read_tensors(path, _ADVICE).items()}
    return description.get("weights", []), tensors


def _parametrize(
    model: nn.Module, records: Sequence[Mapping[str, Any]], stored: Mapping[str, Tensor]
) -> dict[tuple[nn.Module, str], nn.Parameter]:
    """Parametrize the weights of the records by the stored A and S, and return the dense weights.

    A weight that does not fit stays dense: the names of the tensors then differ from the stored ones.
    """
    dense_weights = {}
    for record in records:
        chains: list[Any] = []
        paths = [weight.rpartition(".") for weight in record["weights"]]
        prefixes = [f"{module}.parametrizations.{key}.original".removeprefix(".") for module, _, key in paths]
        originals = [stored[name + i] for i in "01" for name in prefixes if name + i in stored][:2]
        for module, _, key in paths:
            with suppress(AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
                owner = model.get_submodule(module)
                kronecker: Any = Kronecker(**{name: value for name, value in record.items() if name != "weights"})
                weight = owner.get_parameter(key)
                kronecker.right_inverse = lambda weight, tensors=originals: tuple(t.to(weight.device) for t in tensors)
                attach(owner, key, kronecker)
                del kronecker.right_inverse
                dense_weights[owner, key] = weight
                parametrizations: Any = owner.parametrizations
                chains.append(parametrizations[key])
                parametrizations[key] = chains[0]
    return dense_weights

"""Save a model with PHM weights, and fill a fresh model from the folder."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim import Optimizer

from phmctl import plain
from phmctl.algebra.quantise import SCALE, quantise, stored_values
from phmctl.errors import OutputError, PhmctlError, RunError, UserError, check_known, require
from phmctl.nn.linear import StructuredWeight
from phmctl.nn.parametrization import (
    Kronecker,
    attach,
    conversions,
    describe_in_configs,
    plain_names,
    restore,
    wrapped_child,
)
from phmctl.nn.rates import parameters_behind
from phmctl.storage import (
    FORMAT,
    QUANTIZATIONS,
    own_files,
    read_json_object,
    read_seal,
    read_tensors,
    save_tensors,
    seal,
    sole_writer,
    sync,
    temporary_folder,
    verify,
    writing,
)

MODEL, MANIFEST, CONFIG = "model.safetensors", "phm.json", "config.json"  # the config of a model of transformers
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_COMPILED = re.compile(r"(?<![^.])_orig_mod\.")  # what torch.compile adds to the names of what it wraps
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_LARGEST_SIZE, _MOST_AXES = 2**31, 9  # bounds of the sizes and of the number of axes
_ADVICE = "save the model again with phmctl.save(model, folder)"
Model = TypeVar("Model", bound=nn.Module)


def save(model: nn.Module, folder: Path | str, *, quantize: str = "float32") -> None:
    """Write the tensors of a model and the arguments of its conversion into a folder, for :func:`load_into`.

    Args:
        model: a converted model, or any module with PHM layers. ``torch.compile`` or ``DataParallel`` may wrap it.
        folder: a new or existing folder. Files of an earlier call are replaced, and all others stay.
        quantize: ``float32`` keeps every value. ``float16``, ``int8`` and ``int4`` round all matrices but the rules.

    Raises:
        UserError: the model is on the meta device, the state has parts that are not tensors, or `quantize` is unknown
            or cannot store an entry.
        OutputError: the folder cannot be written, or a file that this function did not write has the name of a new one.
    """
    model = _unwrapped(model)
    state = _state(model)
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.is_meta or is_lazy(value):
            raise UserError(f"{name} of the model is not a tensor with values, and cannot be saved")
    check_known("quantisation", quantize, QUANTIZATIONS)
    # Clones, because safetensors refuses tensors that share memory.
    tensors = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    rounded, matrices = {}, _matrices(model)
    for name in list(tensors) if quantize != "float32" else ():
        value = state[name]
        if value in matrices:
            rounded[name] = [str(value.dtype).removeprefix("torch."), *value.shape]
            tensors[name], scale = quantise(_rows(tensors[name].float()), quantize, name)
            tensors |= {} if scale is None else {name + SCALE: scale}
    target = Path(os.path.realpath(folder))  # Path.resolve raises RuntimeError for a loop of links
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
    # In the folder itself, which may be the working folder or a disk of its own, and may have files of others.
    with sole_writer(target / MANIFEST), writing(target), temporary_folder(target / MANIFEST) as temporary:
        save_tensors(temporary / MODEL, tensors)
        config: Any = getattr(model, "config", None)
        if hasattr(config, "to_diff_dict"):
            describe_in_configs(model)  # also for a part that was converted alone
            config.dtype = model.dtype  # from_pretrained makes the model in it
            config.save_pretrained(temporary)
        seal(temporary, MANIFEST, {"format": FORMAT, "weights": conversions(model), "rounded": rounded})
        _move(temporary, target)


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model that ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel`` wraps, or the model."""
    while (child := wrapped_child(model)) is not None:
        model = model.get_submodule(child)
    return model


def _matrices(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters that are rounded: all matrices but the learned rules."""
    rules = _rules(model)
    return {
        parameter
        for parameter in model.parameters()
        if 1 < parameter.dim() < _MOST_AXES
        and parameter.numel() > 0
        and str(parameter.dtype).removeprefix("torch.") in _DTYPES
        and parameter not in rules
    }


@torch.no_grad()
def rounded_weights(model: nn.Module, quantize: str) -> dict[nn.Parameter, Tensor]:
    """Return the values that :func:`save` would store for each parameter that it rounds."""
    if quantize == "float32":
        return {}
    return {
        matrix: stored_values(_rows(matrix.float()), quantize).reshape(matrix.shape).to(matrix.dtype)
        for matrix in _matrices(model)
    }


def _rules(model: nn.Module) -> set[Tensor]:
    """Return the parameters of the learned rules of a model."""
    rules: set[Tensor] = set()
    for module in model.modules():
        names: Sequence[str] = ()
        if isinstance(module, StructuredWeight):
            names = module.structure.rule_names
        elif isinstance(module, ParametrizationList) and isinstance(kronecker := module[0], Kronecker):
            names = [f"original{kronecker.names.index(rule)}" for rule in kronecker.rule_names]
        rules.update(parameter for name in names for parameter in parameters_behind(module, name))
    return rules


def _move(complete: Path, folder: Path) -> None:
    """Move the files of a complete folder into another one, the manifest last. Foreign files stay there.

    Files of an earlier save are replaced or, if there is no new one, removed. Raises OutputError, before anything is
    changed, if a foreign file has the name of a new one.
    """
    before = own_files(folder / MANIFEST, "rounded") & {MODEL, MANIFEST, CONFIG}  # a copied manifest may list any name
    names = sorted(path.relative_to(complete).as_posix() for path in complete.rglob("*") if path.is_file())
    if foreign := [name for name in names if name not in before and os.path.lexists(folder / name)]:
        raise OutputError(
            f"{folder} has {', '.join(foreign)}, which phmctl did not write; move them away, or name another folder"
        )
    for name in before.difference(names):
        (folder / name).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name == MANIFEST):
        (complete / name).replace(folder / name)
    sync(folder)


@torch.no_grad()
def load_into(model: Model, folder: Path | str) -> Model:
    """Fill a model from a folder of :func:`save`, or of ``save_pretrained`` of a converted `transformers` model.

    Args:
        model: a fresh model of the same class and sizes. It is converted in the same way, unless it is already. The
            parameters and buffers get the saved values and keep the dtype. PHM layers that were made by hand must be
            in it.
        folder: the folder.

    Returns:
        `model` itself.

    Raises:
        RunError: a file is missing, damaged or of another model. The model is unchanged.
        UserError: the model is on the meta device, or converted in another way.
    """
    folder, wrapper = Path(folder), model
    model = _unwrapped(model)  # type: ignore[assignment]
    records, stored = _read(folder)
    if any(map(is_lazy, model.state_dict().values())):
        raise UserError("the model has layers whose shape is not known before their first input; call it once")
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        raise UserError("the model is on the meta device; make it on another one, or call model.to_empty(device=...)")
    present = conversions(model)
    if present and present != records:
        raise UserError(f"the model is already converted, but not as in {folder}; load into a fresh dense model")
    dense_weights = {} if present else _parametrize(model, records, stored)
    first = first_names(_state(model))
    for name in [name for name in stored if first.get(name, name) not in stored]:
        stored[first[name]] = stored.pop(name)  # save_pretrained keeps one name of a tied tensor, not always the first
    tensors = model_tensors(model)
    if not (folder / MANIFEST).exists():  # save_pretrained leaves out what a fresh model computes, such as sinusoids
        left_out = {*(getattr(model, "_keys_to_ignore_on_save", None) or ())} - stored.keys()
        stored |= {name: tensors[name] for name in left_out & tensors.keys()}
    stored |= {name: stored[name].to(tensor.dtype) for name, tensor in tensors.items() if name in stored}
    try:
        check_fit(tensors, stored, folder)
    except RunError:
        for (owner, key), weight in dense_weights.items():
            restore(owner, key, weight)
        raise
    for name, tensor in tensors.items():
        tensor.copy_(stored[name])
    describe_in_configs(model)
    return wrapper


def from_pretrained(cls: type[Any], folder: Path | str) -> Any:
    """Return a converted model of `transformers` from a folder, in evaluation mode.

    Args:
        cls: the model's class, or one such as ``AutoModelForCausalLM``.
        folder: a folder of ``save_pretrained`` or of :func:`save`.

    Raises:
        MissingExtraError: `transformers` is not installed.
        UserError: `cls` is not a class of a model of `transformers`.
        RunError: a file is missing, damaged or of another class.
    """
    library, folder = require("transformers", "huggingface"), Path(folder)
    read_json_object(folder / CONFIG, RunError, _ADVICE)  # transformers would look for a missing folder on the hub
    config_class = getattr(cls, "config_class", library.AutoConfig)
    build = getattr(cls, "_from_config", None) or getattr(cls, "from_config", None)
    if build is None:
        raise UserError(f"{cls.__name__} is not a model class of transformers; fill a model by phmctl.load_into")
    try:  # never code of the folder, which `auto_map` in the config names
        config = config_class.from_pretrained(folder, trust_remote_code=False)
        config._attn_implementation = config._experts_implementation = None  # may name kernels of the hub
        model = build(config) if hasattr(cls, "_from_config") else build(config, trust_remote_code=False)
    except Exception as error:  # the classes of models and configs raise errors of any type
        raise RunError(f"{folder / CONFIG} does not describe a {cls.__name__} ({error}); {_ADVICE}") from error
    load_into(model, folder)
    generation = folder / "generation_config.json"
    if generation.is_file():
        try:
            model.generation_config = library.GenerationConfig.from_pretrained(folder)
        except Exception as error:
            raise RunError(f"{generation} cannot be read ({error}); {_ADVICE}") from error
    return model.eval()


def _read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return the records of :func:`conversions` and the tensors of a folder. Raises RunError."""
    if (folder / CONFIG).is_file() and not (folder / MANIFEST).exists():
        source, files = folder / CONFIG, _files_of_transformers(folder)
        description = read_json_object(source, RunError, _ADVICE).get("quantization_config") or {}
    else:
        source = folder / MANIFEST
        description = read_seal(source, RunError, _ADVICE)
        if description.get("format") != FORMAT:
            raise RunError(f"{folder} has format {description.get('format')}, not {FORMAT}; {_ADVICE}")
        verify(folder, description["files"], RunError, _ADVICE)
        files = [entry["name"] for entry in description["files"] if entry["name"].endswith(".safetensors")]
    try:
        records = [_checked_record(record) for record in description.get("weights", [])]
        rounded = {name: _dtype_and_shape(entry) for name, entry in description.get("rounded", {}).items()}
    except (AttributeError, KeyError, PhmctlError, TypeError, ValueError) as error:
        raise RunError(f"{source} is damaged ({error}); {_ADVICE}") from error
    stored = (read_tensors(folder / file, _ADVICE) for file in files)
    tensors = {name: tensor for named in stored for name, tensor in named.items()}
    if source.name == CONFIG:
        tensors = {_COMPILED.sub("", name): tensor for name, tensor in tensors.items()}
    for name, (dtype, shape) in rounded.items():
        columns = shape[-1]
        for size in reversed(shape[:-1]):  # as in _rows
            columns *= size if columns < 16 else 1
        try:
            tensors[name] = plain.numbers(tensors, name, {name: columns}).reshape(shape).to(dtype)
        except (KeyError, RuntimeError, ValueError) as error:
            raise RunError(f"{folder} is damaged: {error}; {_ADVICE}") from error
        tensors.pop(name + SCALE, None)
    return records, tensors


def _files_of_transformers(folder: Path) -> list[str]:
    """Return the files with the weights of ``save_pretrained``, by the rule of `transformers`. Raises RunError."""
    index = folder / f"{MODEL}.index.json"
    if (folder / MODEL).is_file() or not index.is_file():
        return [MODEL]
    places = read_json_object(index, RunError, _ADVICE).get("weight_map")
    files = {*map(str, places.values())} if isinstance(places, dict) else {""}
    if any(Path(file).name != file for file in files):
        raise RunError(f"{index} is damaged: it does not list files of the folder; {_ADVICE}")
    return sorted(files)


def _checked_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of :func:`conversions`, whose arguments :class:`Kronecker` takes.

    Raises AttributeError, KeyError, PhmctlError, TypeError or ValueError if it is damaged.
    """
    arguments = {name: value for name, value in record.items() if name != "weights"}
    sizes = [arguments["n"] or arguments["rank"], *(arguments[name] for name in ("parts", "groups"))]
    sizes += [arguments.get(name) or 1 for name in ("zero_row", "rows", "rank")]
    sizes_are_valid = all(type(size) is int and 0 < size < _LARGEST_SIZE for size in sizes)
    if not sizes_are_valid or type(arguments["transposed"]) is not bool:
        raise ValueError(f"arguments {arguments}")
    names = record["weights"]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError("a weight has no name")
    return {**Kronecker(**arguments).arguments, "weights": names}


def _dtype_and_shape(entry: Sequence[Any]) -> tuple[torch.dtype, list[int]]:
    """Return the dtype and the shape of a rounded tensor. Raises TypeError or ValueError if they are damaged."""
    dtype, *shape = entry
    sizes_are_valid = 1 < len(shape) < _MOST_AXES and all(
        type(size) is int and 0 <= size < _LARGEST_SIZE for size in shape
    )
    if dtype not in _DTYPES or not sizes_are_valid or math.prod(shape) >= 2**63:
        raise ValueError(f"a rounded tensor has the type and shape {str(entry)[:80]}")
    return getattr(torch, dtype), shape


def _rows(tensor: Tensor) -> Tensor:
    """Return a tensor with rows of at least 16 numbers, if it has as many. Rows of a convolution include the kernel."""
    while tensor.dim() > 1 and tensor.shape[-1] < 16:
        tensor = tensor.flatten(-2)
    return tensor


def _parametrize(
    model: nn.Module, records: Sequence[Mapping[str, Any]], stored: Mapping[str, Tensor]
) -> dict[tuple[nn.Module, str], nn.Parameter]:
    """Replace the weights that the records name by the stored tensors.

    A weight that the record does not fit stays dense. The names of the model's tensors then differ from the stored
    names, which :func:`load_into` reports.

    Returns:
        each dense weight that was replaced, by the module and the attribute's name.
    """
    dense_weights = {}
    chains: dict[int, nn.Module] = {}
    wrapped = {plain: name for name, plain in plain_names(model).items()}  # the last entry is the module in a wrapper
    for record in records:
        places = [weight.rpartition(".")[::2] for weight in record["weights"]]  # names of a module and an attribute
        names = [f"{module}.parametrizations.{key}.original".removeprefix(".") for module, key in places]
        originals = [stored[name + i] for i in "0123" for name in names if name + i in stored]
        for module, key in places:
            with suppress(AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
                owner = model.get_submodule(wrapped[module])
                kronecker: Any = Kronecker(**{name: value for name, value in record.items() if name != "weights"})
                weight = owner.get_parameter(key)
                attach(owner, key, kronecker, chains, originals)
                dense_weights[owner, key] = weight
    return dense_weights


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters and persistent buffers by name; a shared tensor once, under the first name."""
    tensors = _state(model)
    return {name: tensors[name].detach() for name, first in first_names(tensors).items() if name == first}


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of a model by name, a shared one under each name."""
    modules = plain_names(model)
    return {_plain_name(name, modules): tensor for name, tensor in model.state_dict(keep_vars=True).items()}


def _plain_name(name: str, modules: Mapping[str, str]) -> str:
    """Return the name of a tensor without the parts that wrappers of its modules add."""
    module, _, key = name.rpartition(".")
    return f"{modules.get(module, module)}.{key}".removeprefix(".")


def first_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the first name of each tensor, by each name of the tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def load_model(model: nn.Module, tensors: Mapping[str, Tensor], path: Path, device: torch.device) -> None:
    """Load tensors of :func:`model_tensors` into a model, which may be on ``meta``.

    Raises RunError, which names the `path` of the tensors, if a name, shape or type differs.
    """
    state = model.state_dict(keep_vars=True)
    names = first_names(state)
    check_fit({name: state[name] for name in names.values()}, tensors, path)
    # Names of a shared tensor get the same object, so that it remains one parameter.
    parameters = {name: nn.Parameter(tensors[name].to(device)) for name in names.values()}
    model.load_state_dict({name: parameters[first] for name, first in names.items()}, assign=True)

    # Modules rebuild tensors that checkpoints do not store, such as positions. to_empty() would import torch's compiler
    # for tensors on meta.
    def allocate(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device) if tensor.is_meta else tensor

    model._apply(allocate)  # type: ignore[no-untyped-call]


def optimiser_tensors(optimiser: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the state of Adam or AdamW as ``<moment>.<parameter's name>`` -> tensor."""
    modules, tensors = plain_names(model), {}
    for name, parameter in model.named_parameters():
        state, plain_name = optimiser.state.get(parameter, {}), _plain_name(name, modules)
        tensors.update({f"{moment}.{plain_name}": state[moment] for moment in _MOMENTS if moment in state})
    return tensors


def prepare_moments(optimiser: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Give every trainable parameter the optimiser state of a step, filled with zeros, and return all of it."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            place = parameter.device if optimiser.defaults["fused"] else "cpu"  # as torch's optimisers do
            state = {"step": torch.zeros((), device=place)}
            state |= {moment: torch.zeros_like(parameter, requires_grad=False) for moment in _MOMENTS[1:]}
            optimiser.state[parameter] = state
    return optimiser_tensors(optimiser, model)


def copy_tensors(target: Mapping[str, Tensor], source: Mapping[str, Tensor], path: Path) -> None:
    """Copy the tensors of a checkpoint into tensors of the same names. Raises RunError if a name or shape differs."""
    check_fit(target, source, path)
    for name, tensor in target.items():
        tensor.copy_(source[name])


def check_fit(model: Mapping[str, Tensor], stored: Mapping[str, Tensor], path: Path) -> None:
    """Raise RunError with the first three differences if the tensors of a file differ in a name, shape or dtype."""
    described = [(name, _describe(stored[name]), _describe(model[name])) for name in model if name in stored]
    problems = [
        f"{name} is {saved} there, {expected} in the model" for name, saved, expected in described if saved != expected
    ]
    problems += [f"it lacks {name}" for name in sorted(model.keys() - stored.keys())]
    problems += [f"it has an unknown {name}" for name in sorted(stored.keys() - model.keys())]
    if problems:
        raise RunError(
            f"{path} does not fit the model ({len(problems)} differences): {'; '.join(problems[:3])}; is it of another "
            "model or version?"
        )


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"

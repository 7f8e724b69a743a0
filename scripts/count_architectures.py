"""Count the parameters of presets with the modules of transformers, on the meta device: no weights, no memory.

    python scripts/count_architectures.py [PRESET …]

prints NAME, parameters counted by transformers, parameters counted here. It needs torch and transformers, which are no
dependencies: the counts that it makes are kept in tests/data/model_counts.csv. A configuration without a class in
transformers is left out.
"""

from __future__ import annotations

import sys
import warnings

from gpucalc.models.model import load_model, preset_names
from gpucalc.models.presets import preset_config


def counted(config: dict[str, object]) -> int | None:
    """Parameters of the class of a configuration, each shared tensor once; None where there is no such class."""
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    names = config.get("architectures")
    kind = str(config.get("model_type"))
    try:
        made = AutoConfig.for_model(kind, **{name: value for name, value in config.items() if name != "model_type"})
        stated = names[0] if isinstance(names, list) and names else ""
        own = getattr(transformers, str(stated), None)
        with torch.device("meta"):
            if own is not None:
                model = own(made)
            elif "ConditionalGeneration" in str(stated):
                model = AutoModelForImageTextToText.from_config(made)
            else:
                model = AutoModelForCausalLM.from_config(made)
            model.tie_weights()
    except (ValueError, KeyError, AttributeError, TypeError, ImportError) as error:
        print(f"  {kind}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
        return None
    unique = {id(parameter): parameter.numel() for parameter in model.parameters()}
    return sum(unique.values())


def main(names: list[str]) -> None:
    """Print a line a preset; those that differ are marked."""
    warnings.simplefilter("ignore")
    for name in names or preset_names():
        found, ours = counted(preset_config(name)), load_model(name).parameters_total
        if found is not None:
            print(name, found, ours, "" if found == ours else "DIFFERS")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Native code: libraries that a pack asks its runtime to load. They are reported, never loaded."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.audit.checks import Finding, finding
from packimport.audit.options import options
from packimport.pack.container import Container

# forward-serve runs no pack that has one of these among its session options.
_REFUSED = ("custom_allocator", "external_data_file")


def native_code(container: Container) -> Iterator[Finding]:
    """A note for each place in genai_config.json that names a library."""
    refused = next(
        (
            option.place
            for option in options(container, *_REFUSED)
            if option.value and option.pointer.split("/")[-2] == "session_options"
        ),
        None,
    )
    for option in options(container, "custom_ops_library"):
        if option.value is None:
            continue
        library = option.value if isinstance(option.value, str) else option.place
        is_here = container.has(library)
        where = "it lies in the pack" if is_here else "it does not lie in the pack"
        yield finding(
            "RPE017",
            f"running the pack loads native code; {where}. Nothing of it was loaded here",
            pointer=option.place,
            found=library,
            fix=_advice(refused, is_here=is_here),
        )


def _advice(refused: str | None, *, is_here: bool) -> str:
    if refused is not None:
        return f"forward-serve never runs this pack: it refuses {refused}. --probe needs no library"
    if not is_here:
        return (
            "forward-serve can't run this pack: it loads no library but one that lies in the pack,"
            " and that only with --allow-custom-ops. --probe needs none"
        )
    return "run it only if you trust it: forward-serve --allow-custom-ops SHA256"

"""The variables by which mpirun tells a process what MPI must know. Pure.

Apart from `mpirun`, because stand-ins need nothing else of that, and there is one for each worker.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PLACES", "admission", "name", "of_mpi", "without"]

PLACES = (
    "PRTE_MCA_prte_tmpdir_base",
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_osc_sm_backing_directory",
)
"""Everything that the job puts on a host lies in its folder there."""

_OF_MPI = ("OMPI_", "PMIX_", "PRTE_", "PMI_")


def without(environ: Mapping[str, str]) -> dict[str, str]:
    """What is not MPI's: of a process of some other job, whose variables are not about ours."""
    return {name: value for name, value in environ.items() if not name.startswith(_OF_MPI)}


def of_mpi(environ: Mapping[str, str]) -> dict[str, str]:
    """What mpirun told a stand-in, and its worker must know; where things lie differs by host."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_OF_MPI) and not name.endswith("_PREFIX")
    }


def name(given: Mapping[str, str]) -> tuple[str, int] | None:
    """As whom MPI knows the worker whose stand-in was told this, by `of_mpi`."""
    space, rank = given.get("PMIX_NAMESPACE"), given.get("PMIX_RANK", "")
    return (space, int(rank)) if space and rank.isdecimal() else None


def admission(given: Mapping[str, str]) -> dict[str, str]:
    """What a newcomer takes over of what its stand-in was told, by `of_mpi`."""
    return {name: value for name, value in given.items() if name not in PLACES}

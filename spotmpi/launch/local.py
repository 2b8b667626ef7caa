"""Jobs whose workers are all on this host."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spotmpi.launch import folder as job_folder
from spotmpi.launch import mpirun
from spotmpi.launch.crew import Crew
from spotmpi.launch.doctor import cores
from spotmpi.launch.installation import Installation
from spotmpi.launch.job import Job, Manner, Start
from spotmpi.launch.worker import TASK
from spotmpi.settings import Settings

__all__ = ["launch"]


def launch(
    script: Path,
    arguments: Sequence[str],
    workers: int,
    settings: Settings,
    installation: Installation,
    manner: Manner,
) -> int:
    """Run a job to its end and return its exit code (`verdict` lists them). Blocking.

    Belongs into the main thread of a process of its own: it handles signals, and kills whatever
    descends from this process when the job ends (children that were there before are spared).
    The settings must have been checked.
    """
    job_folder.remove_abandoned()
    name, folder, lock = job_folder.create(workers)
    try:
        (folder / TASK).write_text(json.dumps([str(script), *arguments]))
        settings = replace(settings, job=name, job_dir=folder)
        command = mpirun.command(installation, workers, mpirun.wrapper(folder))
        environment = mpirun.environment(installation, workers, settings, os.environ, cores())
        job = Job([str(script), *arguments], settings, manner)
        job.look_out(manner.watch)
        crew = Crew(job.loop, folder, job.console.watch)
        crew.expect(range(workers))
        start = Start(command, environment, [platform.node()] * workers, folder)
        return job.run(crew, lambda: start)
    finally:
        job_folder.remove(folder)
        os.close(lock)

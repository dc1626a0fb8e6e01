"""Where a panel that waits for Run says by which command one gets what its last run shows."""

from __future__ import annotations

import ipywidgets as widgets

from edp_lab.course.kit.run_panel import COPY


def last_command(command: widgets.Textarea) -> widgets.VBox:
    """A heading and the box under it, both absent while the box is empty: nothing has been run yet."""
    place = widgets.VBox()
    shown = (widgets.HTML(f"{COPY} (of the last run)"), command)

    def follow(change: object) -> None:
        place.children = shown if command.value else ()

    command.observe(follow, "value")
    follow(None)
    return place

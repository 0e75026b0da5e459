"""Prints what TensorBoard itself reads from a folder of event files, as JSON: {tag: [[step, value], …]}.

    .venv/bin/python tests/e2e/read_tensorboard.py RUN_FOLDER

JSON has no NaN: a value that is not finite is printed as null.
"""

import json
import math
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ALL = 0  # TensorBoard keeps a sample of long series unless told otherwise


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    events = EventAccumulator(sys.argv[1], size_guidance={"scalars": ALL}).Reload()
    series = {
        tag: [[event.step, event.value if math.isfinite(event.value) else None] for event in events.Scalars(tag)]
        for tag in sorted(events.Tags()["scalars"])
    }
    json.dump(series, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

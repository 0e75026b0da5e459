#!/usr/bin/env python3
"""The API reference: it is made from the headers without a warning, and has a page with words for everything that a
program includes."""

import html
import re
import shutil
import subprocess

from harness import SKIP, SOURCE, arguments, check, folder, main

# A class or function of the library, and words that its header says about it.
EXPECTED = {
    "classtrireme_1_1World.html": "What a program of one's own begins with",
    "classtrireme_1_1DataParallel.html": "Whatever the module's own forward takes and gives",
    "classtrireme_1_1ReplicatedModule.html": "Runs the backward pass, averages the gradients over all ranks",
    "structtrireme_1_1DataParallelOptions.html": "gradients that travel together",
    "classtrireme_1_1Loader.html": "Each loop goes on where the one before has ended",
    "classtrireme_1_1AdamW.html": "",
    "classtrireme_1_1SGD.html": "",
    "classtrireme_1_1Trainer.html": "",
    "classtrireme_1_1Dataset.html": "Safe to call from many threads",
    "classtrireme_1_1Error.html": "",
    "saving_8h.html": "load",
    "index.html": "from one process to four ranks to a pipeline",
}


def test():
    arguments(__doc__)
    if not shutil.which("doxygen"):
        print("skipped: doxygen is not installed")
        return SKIP
    with folder() as where:
        settings = (SOURCE / "docs/Doxyfile").read_text() + f"\nOUTPUT_DIRECTORY = {where}\n"
        made = subprocess.run(["doxygen", "-"], cwd=SOURCE, input=settings, text=True, capture_output=True, timeout=120)
        check(made.returncode == 0, f"doxygen warns:\n{made.stderr}")
        for page, words in EXPECTED.items():
            path = where / "html" / page
            check(path.exists(), f"{page} is missing")
            text = " ".join(html.unescape(re.sub(r"<[^>]*>", "", path.read_text())).split())
            check(words in text, f"{page} does not say: {words}")
        print(f"{len(EXPECTED)} pages say what the headers say")
    return 0


main(test)

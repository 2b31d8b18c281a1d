"""Breaks the code on purpose: each patch in this directory must turn the test that its first line names red.

A patch opens with `# test: <pytest id>` and is applied to a copy of the checkout, so that the checkout stays as it is.
A patch that no longer applies, or a test that stays green, fails the run. Arguments pick patches by name.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent


def main() -> int:
    wanted = sys.argv[1:]
    patches = [path for path in sorted(HERE.glob("*.patch")) if not wanted or path.stem in wanted]
    survivors = [patch.stem for patch in patches if not killed(patch)]
    print(f"{len(patches) - len(survivors)} of {len(patches)} mutants were caught")
    for name in survivors:
        print(f"survived: {name}")
    return 1 if survivors or not patches else 0


def killed(patch: Path) -> bool:
    test = patch.read_text().splitlines()[0].removeprefix("# test: ").strip()
    with tempfile.TemporaryDirectory(prefix="thresher-mutant-") as scratch:
        copy = Path(scratch)
        for part in ("src", "tests", "examples", "docs", "pyproject.toml", "README.md"):
            source = ROOT / part
            shutil.copytree(source, copy / part) if source.is_dir() else shutil.copy(source, copy / part)
        applied = subprocess.run(
            ["git", "apply", "--unsafe-paths", f"--directory={copy}", patch],
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
        )
        if applied.returncode != 0:
            print(f"{patch.stem}: does not apply: {applied.stderr.strip()}")
            return False
        # The copy's package comes before the installed one, in this process and in those that tests start.
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", test]
        outcome = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        # 1 is a test that failed; anything else (nothing collected, a usage error) is a mistake of the patch.
        caught = outcome.returncode == 1
        print(f"{'caught  ' if caught else 'SURVIVED'} {patch.stem}: {test}", flush=True)
        if outcome.returncode > 1:
            print(outcome.stdout[-2000:])
        return caught


if __name__ == "__main__":
    sys.exit(main())

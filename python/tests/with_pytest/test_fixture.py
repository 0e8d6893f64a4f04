# SPDX-License-Identifier: Apache-2.0
"""The fixture, as pytest finds it where the package is installed."""

import os
import pathlib
import subprocess
import sys
import tempfile
import tomllib
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parents[2]
USER = """
import threading
from wirepaxos import StateMachine

HAD_TOO_MUCH = threading.Event()

class Last(StateMachine):
    value = b"nothing"

    def apply(self, command):
        if command == b"too much":
            HAD_TOO_MUCH.set()
            raise MemoryError
        self.value = command

    def read(self, query):
        return self.value

    def snapshot(self):
        return self.value

    def restore(self, state):
        self.value = state

FILES = []

def test_two_clusters(wirepaxos):
    one, two = wirepaxos(Last), wirepaxos(Last, partitions=2)
    FILES.extend([one.file, two.file])
    client = two.client()
    client.execute(b"a", partition=1)
    assert client.read(partition=1) == b"a"
    assert client.read() == one.client().read() == b"nothing"
    assert all(file.exists() for file in FILES)

def test_that_they_have_ended():
    assert len(FILES) == 2 and not any(file.exists() for file in FILES)

def test_a_replica_that_cannot_go_on(wirepaxos):
    wirepaxos(Last).client().submit(b"too much")
    assert HAD_TOO_MUCH.wait(60)
"""


class Fixture(unittest.TestCase):
    def test_a_test_that_names_it_gets_clusters_that_end_with_it(self):
        with tempfile.TemporaryDirectory() as directory:
            place = pathlib.Path(directory)
            _install(place / "wirepaxos-0.dist-info")
            (place / "test_user.py").write_text(USER)
            path = os.pathsep.join([directory, os.environ["PYTHONPATH"]])
            pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_user.py"]
            run = subprocess.run(
                pytest,
                cwd=place,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": directory},
                stdout=subprocess.PIPE,
                text=True,
            )
            left = list(place.glob("wirepaxos-*/cluster.toml"))
        self.assertIn(" 3 passed, 1 error in ", run.stdout)
        self.assertIn("ERROR test_user.py::test_a_replica_that_cannot_go_on", run.stdout)
        self.assertRegex(run.stdout, "Error: partition 0 can't go on at instance .*MemoryError")
        self.assertEqual(left, [])


def _install(to):
    """Writes what an installed package says of itself."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    lines = ["[pytest11]"]
    lines += [f"{name} = {module}" for name, module in project["entry-points"]["pytest11"].items()]
    to.mkdir()
    (to / "METADATA").write_text("Metadata-Version: 2.1\nName: wirepaxos\nVersion: 0\n")
    (to / "entry_points.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    unittest.main()

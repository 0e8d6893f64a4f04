#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries packaging/release in a repository of its own, whose ./dev does what the test says."""

import datetime
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

RELEASE = pathlib.Path(__file__).resolve().parent / "release"
# Notes each call, and fails for the step that a file names.
DEV = """#!/bin/sh
echo "$*" >>calls
[ "$1" = "$(cat fails 2>/dev/null)" ] && { echo broken; exit 1; }
echo 'SKIPPED: FPGA: no simulator'
echo '7 passed, 0 failed, 1 skipped'
"""
CHANGELOG = "# Changelog\n\n## 0.1.0, not released\n\nThe first version.\n\n## 0.0.1, 2020-01-01\n\nBefore.\n"


class ReleaseTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        (self.root / "Cargo.toml").write_text('[workspace.package]\nversion = "0.1.0"\n')
        (self.root / "CHANGELOG.md").write_text(CHANGELOG)
        (self.root / ".gitignore").write_text("target\ncalls\nfails\n")
        (self.root / "dev").write_text(DEV)
        (self.root / "dev").chmod(0o755)
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "all")

    def git(self, *arguments):
        done = self.run_there(["git", *arguments])
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def release(self, *arguments):
        done = self.run_there([sys.executable, str(RELEASE), *arguments])
        return done.returncode, done.stdout + done.stderr

    def run_there(self, command):
        names = [f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
        environment = dict(os.environ, GIT_CONFIG_GLOBAL="/dev/null", **dict.fromkeys(names, "test@example.org"))
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True)

    def calls(self):
        path = self.root / "calls"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def refused(self, why, *arguments):
        before = self.git("rev-parse", "HEAD")
        status, said = self.release(*arguments)
        self.assertEqual(status, 1, said)
        self.assertIn(why, said)
        self.assertEqual(self.git("rev-parse", "HEAD"), before)
        self.assertEqual(self.calls(), [])

    def test_tags_what_it_has_checked(self):
        status, said = self.release("0.1.0")
        self.assertEqual(status, 0, said)
        self.assertEqual(self.calls(), ["check", "exam", "torture", "package"])
        notes = self.git("tag", "--list", "--format=%(contents)", "v0.1.0")
        for part in ("The first version.", "check: 7 passed, 0 failed, 1 skipped", "SKIPPED: FPGA"):
            self.assertIn(part, notes)
        self.assertNotIn("Before", notes)
        self.assertIn(f"## 0.1.0, {datetime.date.today().isoformat()}", self.git("show", "v0.1.0:CHANGELOG.md"))
        self.refused_again("exists already")

    def refused_again(self, why):
        status, said = self.release("0.1.0")
        self.assertEqual(status, 1)
        self.assertIn(why, said)

    def test_goes_on_after_a_failure(self):
        (self.root / "fails").write_text("torture")
        status, said = self.release("0.1.0")
        self.assertEqual(status, 1)
        self.assertIn("torture failed", said)
        self.assertEqual(self.git("tag", "--list"), "")
        (self.root / "fails").unlink()
        status, said = self.release("0.1.0")
        self.assertEqual(status, 0, said)
        self.assertEqual(self.calls(), ["check", "exam", "torture", "torture", "package"])

    def test_a_change_makes_all_steps_necessary_again(self):
        (self.root / "fails").write_text("torture")
        self.release("0.1.0")
        (self.root / "fails").unlink()
        self.git("commit", "--quiet", "--allow-empty", "-m", "mended")
        self.assertEqual(self.release("0.1.0")[0], 0)
        self.assertEqual(self.calls(), ["check", "exam", "torture", "check", "exam", "torture", "package"])

    def test_refuses_before_anything_is_changed(self):
        self.refused("is no version", "1.0")
        self.refused("Cargo.toml says 0.1.0", "0.2.0")
        (self.root / "forgotten").write_text("")
        self.refused("forgotten", "0.1.0")
        (self.root / "forgotten").unlink()
        (self.root / "CHANGELOG.md").write_text("# Changelog\n")
        self.git("commit", "--quiet", "-a", "-m", "emptied")
        self.refused("has no heading", "0.1.0")
        (self.root / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0, not released\n")
        self.git("commit", "--quiet", "-a", "-m", "said nothing")
        self.refused("says nothing", "0.1.0")

    def test_a_dry_run_changes_nothing(self):
        status, said = self.release("0.1.0", "--dry-run")
        self.assertEqual(status, 0, said)
        self.assertIn("./dev package --image --try", said)
        self.assertEqual(self.calls(), [])
        self.assertEqual(self.git("status", "--porcelain"), "")


if __name__ == "__main__":
    unittest.main()

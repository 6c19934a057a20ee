"""Tests of models share programs."""

from tests.few_programs import few_programs as few_programs

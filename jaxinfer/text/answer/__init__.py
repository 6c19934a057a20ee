"""Answers taken apart: reasoning, content and tool calls, in the forms that models write them."""

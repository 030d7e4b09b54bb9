# make demo    set everything up, then a real answer from a real model in this terminal
# make test    set everything up, then the tests
# make lint    formatting, lint and types
# make docs    write docs/cli.md from the commands themselves
# make clean   remove what the build made (make distclean: the virtual environment too)

.PHONY: demo test lint docs setup dev clean distclean

demo: setup
	@.venv/bin/hotset demo

test: dev
	@scripts/test

lint: dev
	@scripts/lint

docs: dev
	@.venv/bin/python scripts/make_cli_docs.py

setup:
	@scripts/setup run

dev:
	@scripts/setup dev

clean:
	rm -rf build dist .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis

distclean: clean
	rm -rf .venv

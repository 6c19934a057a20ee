"""A run: a folder with the tokenizer, checkpoints and a log, to which later runs add."""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from demo_training import checkpoints
from demo_training.export import write_folder
from demo_training.model import MODELS, Trainee, raw_config
from demo_training.template import IM_END
from demo_training.tokenizer import special, train_tokenizer
from demo_training.training import BLOCK, Schedule, State, data_from, first_state, step_function, train
from demo_training.validation import exact, sample

_VOCABULARY = 2560
_LOOK_EVERY = 5  # blocks
_SAVE_EVERY = 2  # blocks


class Run(NamedTuple):
    """A model in training. folder: what is kept of it."""

    folder: Path
    model: str
    seed: int
    tokenizer: Tokenizer
    raw: dict[str, Any]
    trainee: Trainee

    @classmethod
    def open(cls, folder: Path, model: str, seed: int, tokenizer_file: Path | None = None) -> "Run":
        """Takes the tokenizer given, or makes one, where the folder has none."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "tokenizer.json"
        if not file.exists() and tokenizer_file is not None:
            shutil.copy(tokenizer_file, file)
        elif not file.exists():
            train_tokenizer(seed, _VOCABULARY).save(str(file), pretty=False)
        tokenizer = Tokenizer.from_file(str(file))
        raw = raw_config(MODELS[model], tokenizer.get_vocab_size(), special(tokenizer, IM_END))
        return cls(folder, model, seed, tokenizer, raw, Trainee(raw))

    def state(self, resume: bool) -> State:
        """The newest checkpoint's state, or the first one. Raises SystemExit where old checkpoints are in the way."""
        state, path = first_state(self.trainee, self.seed), checkpoints.newest(self.folder)
        if path is not None and not resume:
            raise SystemExit(f"{self.folder} holds {path.name}: say --resume to go on from it")
        return checkpoints.load(path, state) if path is not None else state

    def schedule(self, state: State, peak: float, decay_steps: int) -> Schedule:
        """The rate from here on. A decay that was begun is kept in the folder and goes on when the run is resumed."""
        file = self.folder / "decay.json"
        if decay_steps:
            begun = {"decay_from": state.step, "decay_steps": decay_steps}
            file.write_text(json.dumps(begun) + "\n", encoding="utf-8")
        begun = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        schedule = Schedule(peak=peak, **begun)
        return Schedule(peak=peak) if schedule.last is not None and state.step >= schedule.last else schedule

    def train(self, state: State, schedule: Schedule, end: int) -> State:
        """Steps up to `end`, with checkpoints, and a line of progress a block."""
        step, data = step_function(self.trainee), data_from(self.tokenizer, self.seed, state.step)
        looked = sample(self.tokenizer, self.seed)
        while state.step < end:
            begin = time.monotonic()
            state, losses, tokens = train(step, state, data, schedule, BLOCK)
            seconds, block = time.monotonic() - begin, state.step // BLOCK
            line: dict[str, Any] = {
                "step": state.step,
                "loss": round(sum(losses) / BLOCK, 4),
                "rate": round(schedule.rate(state.step), 6),
                "tokens": tokens,
                "seconds": round(seconds, 1),
            }
            if block % _LOOK_EVERY == 0 or state.step >= end:
                shares = exact(self.trainee, state.params, looked)
                line["exact"] = {kind: round(share, 2) for kind, share in shares.items()}
            if block % _SAVE_EVERY == 0 or state.step >= end:
                checkpoints.save(self.folder, state)
            self._report(line)
        return state

    def export(self, state: State, folder: Path) -> None:
        """The model as a Hugging Face folder, with the log of its training."""
        write_folder(folder, self.raw, state.params, self.tokenizer)
        written = [json.loads(line) for line in (self.folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        lines = {line["step"]: line for line in written}.values()  # of steps done again after a stop, the last ones
        columns = ("step", "loss", "rate", "tokens", "seconds")
        rows = [",".join(columns), *(",".join(str(line[column]) for column in columns) for line in lines)]
        (folder / "training_log.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")

    def _report(self, line: dict[str, Any]) -> None:
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.strftime("%H:%M:%S"), **line}) + "\n")
        speed = line["tokens"] / line["seconds"]
        print(f"step {line['step']:6}  loss {line['loss']:.4f}  rate {line['rate']:.5f}  {speed:6.0f} tokens/s")
        for kind, share in line.get("exact", {}).items():
            print(f"    {share:5.0%}  {kind}")
        sys.stdout.flush()

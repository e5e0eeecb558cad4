"""What is said about data that cannot be used, and about calls that hand data over.

Tests refer to these texts, so that mending a word breaks none of them. `why`: an error's type and first line.
"""

from __future__ import annotations

from shoal.values import Cursor

# Sizes

NO_BATCH_SIZE = "no batch_size was given; say how many samples each worker gets, such as batch_size=64"
NO_SAMPLES = "the data set is empty; there is nothing to train on"


def bad_batch_size(batch_size: object) -> str:
    return f"batch_size is {batch_size!r}; it should be 1 or more samples per worker"


def bad_accumulate(accumulate: int) -> str:
    return f"accumulate is {accumulate}; it should be 1 or more batches per step"


def bad_loaders(loaders: int) -> str:
    return f"loaders is {loaders}; it should be 0 (load in the worker) or more processes"


def too_few_samples(samples: int, workers: int) -> str:
    return f"the data set has {samples} samples for {workers} workers; start at most {samples} workers (-n {samples})"


def nothing_left(samples: int, *, workers: int, batch_size: int) -> str:
    return (
        f"drop_last leaves nothing of {samples} samples: a whole batch is {workers} workers times {batch_size}; "
        "make the batch smaller or leave drop_last out"
    )


# Kinds of data


def kind_of(data: object) -> str:
    return f"the class {data.__name__} itself" if isinstance(data, type) else f"a {type(data).__name__}"


def no_data(data: object) -> str:
    return (
        f"{kind_of(data)} cannot be used as data; give a Dataset with __getitem__ and __len__, a list of samples, "
        "an iterable, Files or a DataLoader"
    )


def given_arrays(data: object) -> str:
    return f"{kind_of(data)} was given as data; wrap it: TensorDataset(x, y) makes each row a sample"


def given_no_samples(data: object) -> str:
    return f"{kind_of(data)} was given as data; give a list of samples or a Dataset"


def given_a_set(data: object) -> str:
    return f"{kind_of(data)} was given as data, which has no fixed order; give a list, such as sorted(data)"


def given_a_class(data: type) -> str:
    return f"{kind_of(data)} was given as data; give an instance: {data.__name__}(...)"


def no_length(data: object) -> str:
    return f"{kind_of(data)} was given as data and has no length; give it a __len__, or make it an IterableDataset"


# DataLoaders


def no_loader_batch_size(*, has_batch_sampler: bool) -> str:
    what = "a batch_sampler of its own" if has_batch_sampler else "batch_size=None"
    return (
        f"the DataLoader has {what}, but Shoal deals the samples out; give it a batch_size per worker, and "
        "shuffle=True or False"
    )


def own_sampler(sampler: str) -> str:
    return (
        f"the DataLoader has a {sampler} of its own, but Shoal deals the samples out; use shuffle=True or False, and "
        "Subset(dataset, indices) to choose samples"
    )


def distributed_sampler(sampler: str, *, shuffle: bool) -> str:
    return (
        f"the DataLoader has a {sampler}, which splits the data by rank, but run.batches deals the samples out to all "
        f"workers; leave the sampler out and give the DataLoader shuffle={shuffle}"
    )


def contradiction(name: str, in_call: object, in_loader: object) -> str:
    return f"{name} is {in_call!r} in the call and {in_loader!r} in the DataLoader; leave it out of the call"


# Files

NO_PATHS = "Files was given no paths; there is nothing to train on"


def one_path(path: object) -> str:
    return f"Files was given one path, {path!r}; give a list of paths"


def no_reader(read: object) -> str:
    return f"Files was given {read!r} to read with; give a function that yields a file's samples"


def file_missing(path: str) -> str:
    return f"the data file {path} does not exist; check the paths given to Files"


def file_unreadable(path: str, samples: int, why: str) -> str:
    return (
        f"the data file {path} could not be read after {samples} samples: {why}; "
        "files must stay readable for the whole job"
    )


# Tables

NO_PYARROW = 'reading Parquet files needs pyarrow: `pip install "shoal[tables]"`'


def no_tables(url: str) -> str:
    return f"there is no Parquet file below {url}; check the URL, and that the table was written to its end"


def tables_unreachable(url: str, why: str) -> str:
    return f"the tables at {url} cannot be listed: {why}; check the URL and the credentials"


def no_way_to_tables(url: str, why: str) -> str:
    return f"the tables at {url} cannot be listed: {why}; install what reads this kind of URL (s3: shoal[s3])"


def amount(files: int, size: int) -> str:
    return f"{files:,} file{'' if files == 1 else 's'} with {size:,} bytes"


def tables_differ(url: str, machine: str, seen: str, written: str) -> str:
    return (
        f"{machine} sees {seen} at {url}, but the table was written as {written}: it must be a folder or URL that all "
        "machines share, in which nothing was changed since"
    )


def rows_differ(url: str, machine: str, seen: int, written: int) -> str:
    return (
        f"{machine} sees {seen:,} rows at {url}, but {written:,} were written: it must be a folder or URL that all "
        "machines share, to which nobody else writes"
    )


def table_unfinished(url: str) -> str:
    return (
        f"the table at {url} was not written to its end and may lack rows: remove it, and write it again there or "
        "elsewhere"
    )


def table_is_there(url: str, rows: int) -> str:
    return (
        f"a whole table of {rows:,} rows is at {url} already; pass {url!r} in place of the table to train on it, or "
        "another at="
    )


def place_in_use(url: str) -> str:
    return f"there is something at {url} already, which Shoal has not written; pass another at=, or an empty folder"


def marker_damaged(url: str, name: str) -> str:
    return f"{name} at {url} is not what Shoal wrote; write the table again elsewhere"


def place_not_written(url: str, why: str) -> str:
    return f"nothing can be written to {url}: {why}; check the URL, the credentials and the free space"


def no_column(column: str, there: list[str]) -> str:
    return f"there is no column {column}, only {', '.join(there)}"


def number_missing(column: str, kind: str) -> str:
    return f"a list in column {column} lacks a number ({kind}, which has no NaN); fill it before the table is written"


# Streams

ENTERED_IN_THE_MIDDLE = (
    "workers that run free enter the data in the middle, which a stream does not allow; "
    "use --consistency synchronous, or data with __getitem__ and __len__"
)


def read_already(source: str, start: int, epoch: int) -> str:
    return (
        f"{source} is an iterator that was already read and cannot go back to sample {start} of epoch {epoch}; "
        "give an object whose __iter__ starts anew, like IterableDataset"
    )


def read_only_once(source: str, loaders: int) -> str:
    return (
        f"{source} can be read only once, but loaders={loaders} needs it in every process; "
        "use loaders=0 or an object whose __iter__ starts anew"
    )


def does_not_start_anew(source: str, epoch: int) -> str:
    return f"{source} gave no sample in epoch {epoch}; its __iter__ should start anew in every epoch"


def stream_failed(source: str, samples: int, epoch: int, why: str) -> str:
    return f"{source} failed after {samples} samples of epoch {epoch}: {why}"


# Data that are not the same on every worker

WHOLE_DATA = (
    "every worker must be given the whole data set, which run.batches deals out: leave out what splits it by rank or "
    "at random (Subset, shard, random_split without a seeded generator)"
)


def data_differ(how: str) -> str:
    return f"{how}; {WHOLE_DATA}"


def sample_differs(what: str, index: int, workers: tuple[int, int], call: str) -> str:
    one, other = workers
    how = f"{what}: sample {index} of the data differs between worker {one} and worker {other}"
    return f"{data_differ(how)}; if each worker's data are meant to differ, say {call}(..., own_data=True)"


def lengths_differ(what: str, lengths: tuple[int, int], workers: tuple[int, int]) -> str:
    one, other = (f"{length} on worker {worker}" for length, worker in zip(lengths, workers, strict=True))
    return data_differ(f"{what}: number of samples is {one} and {other}")


def stream_may_differ(what: str, index: int, workers: tuple[int, int], call: str) -> str:
    one, other = workers
    return (
        f"{what}: sample {index} of an iterator differs between worker {one} and worker {other}; if the iterator is "
        f"split by rank, samples are lost: give every worker the same one, or say {call}(..., own_data=True)"
    )


def sample_changed(what: str, index: int, checkpoint: str) -> str:
    return (
        f"{what}: sample {index} of the data is not what it was when {checkpoint} was made; if the data have changed, "
        "samples of this epoch may be used twice or never: go on with the data that the job was started with"
    )


# A job that goes on with less data


def stream_shorter(cursor: Cursor, source: str, samples: int) -> str:
    return (
        f"the job has used {cursor.position} samples of epoch {cursor.epoch}, but {source} ended after {samples}; "
        "go on with the data that the job was started with"
    )


def data_set_shorter(cursor: Cursor, samples: int) -> str:
    return (
        f"the job has used {cursor.position} samples of epoch {cursor.epoch}, but the data set has only {samples}; "
        "go on with the data set that the job was started with"
    )


# Loading


def sample_failed(index: int, source: str, why: str) -> str:
    return f"sample {index} of {source} could not be loaded: {why}; try dataset[{index}] by itself"


def not_collated(collate: str, samples: int, why: str) -> str:
    return (
        f"{collate} could not make a batch of {samples} samples: {why}; "
        "samples should have equal shapes, or give a collate function that handles them"
    )


def loading_failed(processes: int, why: str) -> str:
    return (
        f"loading with {processes} background process{'' if processes == 1 else 'es'} failed: {why}; "
        "loaders=0 (num_workers=0 of a DataLoader) loads in the worker itself and shows why"
    )

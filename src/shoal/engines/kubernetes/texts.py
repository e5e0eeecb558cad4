"""What users are told about a job that cannot be rendered for Kubernetes. Tests refer to these texts."""

from __future__ import annotations

# Names and sizes


def bad_name(option: str, name: str, longest: int) -> str:
    return (
        f"--{option} is {name!r}, which Kubernetes takes for no name; use at most {longest} of a-z, 0-9 and -, "
        "beginning with a letter and ending with a letter or digit"
    )


def no_name_in(script: str) -> str:
    return f"no name for the job can be made from {script!r}; give one with --name, such as --name train"


def bad_image(image: str) -> str:
    return f"--image is {image!r}; it should be an image that the cluster can pull, such as REGISTRY/train:1"


def bad_cpu(text: str) -> str:
    return f"--cpu is {text!r}; it should be a number of cores such as 4, 1.5 or 500m, above 0"


def bad_memory(text: str) -> str:
    return f"--memory is {text!r}; it should be an amount as Kubernetes writes it, such as 8Gi or 512Mi, above 0"


def not_between(option: str, number: int, least: int, most: int) -> str:
    return f"--{option} is {number}; it should be from {least} to {most}"


# Scripts


def script_too_large(script: str, size: int, most: int) -> str:
    return (
        f"the script {script} has {size:,} bytes, and a ConfigMap holds at most {most:,}; put it into the image, and "
        "name its path there with --in-image"
    )


def needs_modules(script: str, module: str) -> str:
    return (
        f"the script {script} imports {module}, which lies beside it, and a ConfigMap brings the script alone; put "
        "both into the image, and name the script's path there with --in-image"
    )


def not_in_the_image(path: str) -> str:
    return f"SCRIPT is {path!r} with --in-image; it should be an absolute path in the image, such as /app/train.py"


def no_plain_text(word: str) -> str:
    return f"the argument {word!r} is no text in UTF-8, which is all that Kubernetes takes; write it in another way"


# Checkpoints


def no_shared_folder(place: str) -> str:
    return (
        f"--checkpoint-to is {place!r}, a folder that each pod would have for itself; give a URL such as "
        "s3://bucket/folder, or claim:NAME for a volume claim that all pods may write (ReadWriteMany)"
    )


def bad_claim(place: str) -> str:
    return (
        f"--checkpoint-to is {place!r}; it should be claim:NAME with the name of a volume claim, or claim:NAME/FOLDER "
        "for a folder on it"
    )


def nowhere_for_checkpoints(every: str) -> str:
    return (
        f"--checkpoint-every is {every}, but pods share no disk; give --checkpoint-to s3://bucket/folder, or "
        "claim:NAME for a volume claim that all pods may write (ReadWriteMany)"
    )

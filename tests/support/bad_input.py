"""A tour of bad input with the exact messages: every option of `aol train` and `aol stream`."""

WRONG = {
    "train --data mnist": (
        "unknown data set 'mnist': no such folder, and the built-in names are digits, fashion-mnist, cifar10, cifar100"
    ),
    "train --data ,digits": (
        "unknown data set '': no such folder, and the built-in names are digits, fashion-mnist, cifar10, cifar100"
    ),
    "train --data-dir=": "argument --data-dir: must name a folder, not ''; see aol train --help.",
    "stream --out=": "argument --out: must name a folder, not ''; see aol stream --help.",
    "train --image-size 16": "--image-size is for folders of images: those of digits are 8 pixels wide.",
    "train --image-size x": "--image-size must be a whole number, not 'x'.",
    "train --image-size 0": "--image-size must be a whole number of 1 or more, not 0.",
    "train --imbalance 0.5": "--imbalance must be a number in [1, 1e+09], not 0.5.",
    "train --imbalance much": "--imbalance must be a number, not 'much'.",
    "train --profile flat": "--profile must be one of 'exp', 'step', not 'flat'.",
    "train --weighting age": (
        "--weighting must be one of 'none', 'cb', 'aol', 'cb+aol', 'frequency', 'error', not 'age'."
    ),
    "train --weighting aol --rho 1.5": "--rho must be a number in [0, 1], not 1.5.",
    "train --weighting aol --rho nan": "--rho must be a number in [0, 1], not nan.",
    "train --beta 1": "--beta must be a number in [0, 1), not 1.",
    "train --power -1": "--power must be a number in [0, 1e+06], not -1.0.",
    "train --temper inf": "--temper must be a number in [0, 1e+06], not inf.",
    "train --level batch": "--level must be one of 'class', 'sample', not 'batch'.",
    "train --fuse sum": "--fuse must be one of 'ema', 'mean', not 'sum'.",
    "train --mechanism both": "--mechanism must be one of 'reweight', 'resample', not 'both'.",
    "train --loss hinge": "--loss must be one of 'softmax', 'sigmoid', 'focal', not 'hinge'.",
    "train --gamma -0.1": "--gamma must be a number in [0, 1e+06], not -0.1.",
    "train --divide-by zero": "--divide-by must be one of 'auto', 'weight', 'count', not 'zero'.",
    "train --signal test": "--signal must be one of 'eval', 'train', 'none', not 'test'.",
    "train --signal none --weighting aol": "--signal none tracks no ages, and --weighting aol needs them.",
    "train --seed -1": "--seed must be a whole number of 0 or more, not -1.",
    "train --seed 0,,1": "--seed must be a whole number, not ''.",
    f"train --seed {2**63}": f"--seed must be below 2 ** 63, not {2**63}.",
    "train --net lenet": (
        "--net must be one of 'auto', 'cnn', 'resnet32', 'resnet34-cifar', 'resnet34', 'vit', not 'lenet'."
    ),
    "train --net resnet34": (
        "--net resnet34 does not fit the images of digits: --image-size must be at least 32 for resnet34, got 8."
    ),
    "train --epochs 0": "--epochs must be a whole number of 1 or more, not 0.",
    "train --epochs 2.5": "--epochs must be a whole number, not '2.5'.",
    "train --batch-size 0": "--batch-size must be a whole number of 1 or more, not 0.",
    "train --optimiser adam": "--optimiser must be one of 'sgd', 'adamw', not 'adam'.",
    "train --lr fast": "--lr must be a number, not 'fast'.",
    "train --momentum 2": "--momentum must be a number in [0, 1], not 2.0.",
    "train --weight-decay -1": "--weight-decay must be a number in [0, 1e+06], not -1.0.",
    "train --schedule linear": "--schedule must be one of 'paper', 'cosine', 'fixed', not 'linear'.",
    "train --warmup -1": "--warmup must be a number in [0, 1e+06], not -1.0.",
    "train --average 1": "--average must be a number in [0, 1), not 1.",
    "train --precision fp16": "--precision must be one of 'fp32', 'bf16', not 'fp16'.",
    "train --normalisation none": "--normalisation must be one of 'centred', 'standardised', not 'none'.",
    "train --augment maybe": "--augment must be true or false, not 'maybe'.",
    "train --validation 1": "--validation must be a number in [0, 1), not 1.",
    "train --eval-every 0": "--eval-every must be a whole number of 1 or more, not 0.",
    "train --fraction 0": "--fraction must be a number in (0, 1], not 0.0.",
    "train --device tpu": "--device must be auto, cpu, cuda or cuda:N, not 'tpu'.",
    "train --device meta": "--device must be auto, cpu, cuda or cuda:N, not 'meta'.",
    "train --together 0": "argument --together: must be a whole number of 1 or more, not '0'; see aol train --help.",
    "train --workers -1": "argument --workers: must be a whole number of 0 or more, not '-1'; see aol train --help.",
    "train --checkpoint-seconds soon": (
        "argument --checkpoint-seconds: must be a number of 0 or more, not 'soon'; see aol train --help."
    ),
    "train --resume --fresh": "--resume and --fresh contradict each other: go on, or delete and start again.",
    "train --memory all": "unrecognized arguments: --memory all; see aol --help.",
    "stream --stream random": "--stream must be one of 'access', 'shifting', not 'random'.",
    "stream --steps 0": "--steps must be a whole number of 1 or more, not 0.",
    "stream --epochs 3": "unrecognized arguments: --epochs 3; see aol --help.",
    "stream --period 0": "--period must be a whole number of 1 or more, not 0.",
    "stream --memory reservoir:0": (
        "--memory must be 'all', 'none' or 'reservoir:K' with K of 1 or more, not 'reservoir:0'."
    ),
    "stream --memory some": "--memory must be 'all', 'none' or 'reservoir:K' with K of 1 or more, not 'some'.",
    "stream --threshold 2": "--threshold must be a number in [0, 1], not 2.0.",
    "stream --fraction 1.5": "--fraction must be a number in (0, 1], not 1.5.",
    "stream --imbalance none": "--imbalance must be given for --stream shifting.",
    "stream --weighting aol --level sample": (
        "--level sample needs samples that come back: on a stream only 'class' is possible."
    ),
    "stream --keep-samples": "unrecognized arguments: --keep-samples; see aol --help.",
    "train --keep-samples --signal none": (
        "--keep-samples keeps the ages of samples: a stream has those of classes only, and --signal none has none."
    ),
}

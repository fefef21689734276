"""Make the tiny chat model: ``python -m scripts.tiny_model.train --output DIR [--steps N]``.

A four-layer Llama of about 1.2 million parameters with its own byte-level BPE and a ChatML template,
trained on the prose that ships with Python. Run it with the engine environment's Python: it needs torch,
transformers and tokenizers. The same Python release, library versions, thread count and step count give the
same weights.
"""

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from scripts.tiny_model import corpus

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

VOCABULARY = 3072
CONTEXT_TOKENS = 8192
SEED = 20
BATCH = 16
ROW_TOKENS = 384
PEAK_LEARNING_RATE = 4e-3
WARM_UP_STEPS = 100


def make(output: Path, *, steps: int) -> None:
    """Train for ``steps`` batches; save config, bfloat16 weights, tokenizer, template into ``output``."""
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    chats = corpus.conversations(rng)
    tokenizer = train_tokenizer(chats)
    model = LlamaForCausalLM(configuration(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(chats):,} conversations", flush=True)
    train(model, batches(tokenizer, chats, rng), steps=steps)
    save(model, tokenizer, output)


def train_tokenizer(chats: list[list[corpus.Message]]) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of ``VOCABULARY`` tokens: any text encodes, and decodes to the same bytes."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((message["content"] for chat in chats for message in chat), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_TOKENS,
    )


def configuration(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Return the architecture; head size and widths are multiples the CPU attention kernels accept."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def batches(
    tokenizer: PreTrainedTokenizerFast, chats: list[list[corpus.Message]], rng: random.Random
) -> Iterator[torch.Tensor]:
    """Yield batches for ever: ``(BATCH, ROW_TOKENS)`` ids of conversations laid end to end."""
    end = tokenizer.pad_token_id
    encoded = [[*tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False), end] for chat in chats]
    size = BATCH * ROW_TOKENS
    while True:
        rng.shuffle(encoded)
        stream = torch.tensor(list(itertools.chain.from_iterable(encoded)))
        for start in range(0, len(stream) - size, size):
            yield stream[start : start + size].view(BATCH, ROW_TOKENS)


def train(model: LlamaForCausalLM, data: Iterator[torch.Tensor], *, steps: int) -> None:
    """Fit the model to every token, questions included: both sides are prose to learn from."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    model.train()
    started = time.monotonic()
    for step, rows in enumerate(itertools.islice(data, steps), start=1):
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps:
            print(f"step {step}/{steps}  loss {loss.item():.3f}  {time.monotonic() - started:.0f} s", flush=True)


def _rate(step: int, steps: int) -> float:
    """Return the share of the peak rate: a linear warm-up, then half a cosine down to a twentieth."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    progress = min((step - WARM_UP_STEPS) / max(steps - WARM_UP_STEPS, 1), 1.0)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """Write a folder that vLLM serves as it is; sampling defaults keep a model this small on topic."""
    generation = model.generation_config
    generation.do_sample = True
    generation.temperature = 0.6
    generation.top_p = 0.9
    generation.eos_token_id = tokenizer.eos_token_id
    generation.pad_token_id = tokenizer.pad_token_id
    output.mkdir(parents=True, exist_ok=True)
    model.eval().to(torch.bfloat16).save_pretrained(output)
    tokenizer.save_pretrained(output)


def main() -> None:
    """Parse the command line and make the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    make(arguments.output, steps=arguments.steps)


if __name__ == "__main__":
    main()

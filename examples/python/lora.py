"""The Trainer of Transformers with LoRA: only the adapters travel, once in 20 optimizer steps.

    pip install transformers peft accelerate
    python lora.py                              the first peer prints an invite
    PEERGRAD_INVITE=pg1... python lora.py       every other peer

The model is a small BERT with random weights, so that the script needs no download. It learns which of two halves of the vocabulary a
text begins with. Put your pretrained model in its place: all peers must load the same frozen weights.
"""

import os

import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import peergrad.torch as pg
from peergrad.transformers import Rounds

ROUND = 20
BATCH = 16


def main() -> None:
    torch.manual_seed(1)
    config = BertConfig(vocab_size=64, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    adapters = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "key", "value"])
    model = get_peft_model(BertForSequenceClassification(config), adapters)
    # Each peer has texts of its own: its process number serves as a seed.
    generator = torch.Generator().manual_seed(os.getpid())
    texts = torch.randint(64, (4000, 16), generator=generator)
    data = [{"input_ids": text, "labels": int(text[0] >= 32)} for text in texts]
    # 20,000 samples over all peers, whichever of them computes them.
    run = {"epochs": 1, "batch": BATCH * ROUND, "sync": {"kind": "diloco", "local_steps": 1}}
    with pg.Swarm(model, name="lora", samples=20_000, run=run) as swarm:
        arguments = TrainingArguments(
            output_dir=str(swarm.directory / "trainer"), per_device_train_batch_size=BATCH, learning_rate=1e-3,
            lr_scheduler_type="constant", num_train_epochs=1000, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=data, callbacks=[Rounds(swarm, every=ROUND)]).train()
    travels = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    print(f"{travels} of {total} parameters travel; digest {swarm.result.digest}")


if __name__ == "__main__":
    main()

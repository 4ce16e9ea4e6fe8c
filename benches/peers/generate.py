"""Decoding and prefill of a decoder with random weights, by llama.cpp in Q8_0 or by PyTorch in bf16, told what to do by standard input.

    python generate.py llama.cpp|torch CONFIG TASK THREADS

CONFIG is the config.json of a model (llama or qwen3). TASK is `decode BATCH CONTEXT TOKENS` as one argument, tokens one by one after as many in
the cache, or `prefill TOKENS`. The first line that it prints is its name; then each line read is a run, and each line printed ends one. llama.cpp reads
a GGUF of the shapes, which the PyPI package `gguf` writes to a temporary folder. Run by `burn-fp8-bench --only generate --peers`.
"""
import json
import os
import sys
import tempfile

PEER, CONFIG, TASK, THREADS = sys.argv[1:]
THREADS = int(THREADS)
os.environ["OMP_NUM_THREADS"] = str(THREADS)

with open(CONFIG) as file:
    config = json.load(file)
KIND, *NUMBERS = TASK.split()
NUMBERS = [int(number) for number in NUMBERS]


def serve(name, run):
    print(name, flush=True)
    for _ in sys.stdin:
        run()
        print(flush=True)


def write_gguf(path):
    """Random weights in Q8_0, norms in f32: the file has no more than a loader wants."""
    import gguf
    import numpy as np

    arch = config["model_type"]
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or hidden // heads
    vocabulary = config["vocab_size"]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    rng = np.random.default_rng(0)

    def matrix(name, rows, columns):
        blocks = np.empty((rows, columns // 32), dtype=[("scale", "<f2"), ("codes", "i1", 32)])
        blocks["scale"] = 0.02 / 64
        blocks["codes"] = rng.integers(-127, 128, size=blocks["codes"].shape, dtype=np.int8)
        data = blocks.view(np.uint8).reshape(rows, -1)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    def vector(name, length):
        writer.add_tensor(name, np.ones(length, dtype=np.float32))

    matrix("token_embd.weight", vocabulary, hidden)
    vector("output_norm.weight", hidden)
    for index in range(config["num_hidden_layers"]):
        block = f"blk.{index}"
        vector(f"{block}.attn_norm.weight", hidden)
        vector(f"{block}.ffn_norm.weight", hidden)
        if arch == "qwen3":
            vector(f"{block}.attn_q_norm.weight", width)
            vector(f"{block}.attn_k_norm.weight", width)
        matrix(f"{block}.attn_q.weight", heads * width, hidden)
        matrix(f"{block}.attn_k.weight", kv_heads * width, hidden)
        matrix(f"{block}.attn_v.weight", kv_heads * width, hidden)
        matrix(f"{block}.attn_output.weight", hidden, heads * width)
        matrix(f"{block}.ffn_gate.weight", wide, hidden)
        matrix(f"{block}.ffn_up.weight", wide, hidden)
        matrix(f"{block}.ffn_down.weight", hidden, wide)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp():
    import ctypes

    import llama_cpp as ll

    batch, context, tokens = NUMBERS if KIND == "decode" else (1, 0, NUMBERS[0])
    # Kept while llama.cpp may call it.
    silent = ll.llama_log_callback(lambda *_: None)
    ll.llama_log_set(silent, ctypes.c_void_p(0))
    ll.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        write_gguf(path)
        parameters = ll.llama_model_default_params()
        parameters.use_mmap = False
        model = ll.llama_model_load_from_file(path.encode(), parameters)
    assert model, "llama.cpp does not load the GGUF"
    parameters = ll.llama_context_default_params()
    parameters.n_ctx = batch * (context + tokens + 64)
    parameters.n_batch = parameters.n_ubatch = 512
    parameters.n_seq_max = batch
    parameters.n_threads = parameters.n_threads_batch = THREADS
    ctx = ll.llama_init_from_model(model, parameters)
    memory = ll.llama_get_memory(ctx)
    slots = ll.llama_batch_init(512, 0, 1)

    def forward(start, count, sequences):
        slots.n_tokens = count * len(sequences)
        for i in range(slots.n_tokens):
            sequence, place = sequences[i // count], i % count
            slots.token[i] = 1 + (start + place) % 1000
            slots.pos[i] = start + place
            slots.n_seq_id[i] = 1
            slots.seq_id[i][0] = sequence
            slots.logits[i] = place == count - 1
        assert ll.llama_decode(ctx, slots) == 0
        ll.llama_get_logits(ctx)

    for sequence in range(batch):
        if context:
            forward(0, context, [sequence])

    def run():
        if KIND == "prefill":
            ll.llama_memory_clear(memory, True)
            return forward(0, tokens, [0])
        for token in range(tokens):
            forward(context + token, 1, list(range(batch)))
        for sequence in range(batch):
            ll.llama_memory_seq_rm(memory, sequence, context, -1)

    serve(f"llama.cpp Q8_0 (llama-cpp-python {ll.__version__})", run)


def pytorch():
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(THREADS)
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    kind = AutoConfig.for_model(plain.pop("model_type"), **plain)
    torch.set_default_dtype(torch.bfloat16)
    model = AutoModelForCausalLM.from_config(kind).eval()
    batch, context, tokens = NUMBERS if KIND == "decode" else (1, 0, NUMBERS[0])
    ids = torch.arange(1, 1 + context + tokens).repeat(batch, 1)
    cache = DynamicCache(config=kind)
    with torch.inference_mode():
        if context:
            model(ids[:, :context], past_key_values=cache, logits_to_keep=1)

        def run():
            if KIND == "prefill":
                model(ids, past_key_values=DynamicCache(config=kind), logits_to_keep=1)
                return
            for token in range(context, context + tokens):
                model(ids[:, token : token + 1], past_key_values=cache)
            cache.crop(-tokens)

        serve(f"PyTorch {torch.__version__} bf16 (transformers {transformers.__version__})", run)


{"llama.cpp": llama_cpp, "torch": pytorch}[PEER]()

"""What each oracle case is: the model's config, how its weights are stored, and how it is trained.

A case names the transformers major version (`form`) whose `config.json` it must carry: the two
majors write rotary settings, dtypes and tied names differently, and both are found in the wild.
"""
from dataclasses import dataclass, field


@dataclass
class Case:
    """One oracle directory."""

    name: str
    family: str                       # model_type
    form: int                         # transformers major that writes config.json and the tensors
    config: dict = field(default_factory=dict)
    dtype: str = "float32"            # storage type of the weights
    shard: str = "5GB"                # max_shard_size given to save_pretrained
    bare: bool = False                # save the base model: names without `transformer.` / `model.`
    edit_config: dict = field(default_factory=dict)   # keys set in config.json afterwards (None: removed)
    mask_buffers: str = ""            # "", "f32" or "u8": add the old `attn.bias` causal masks
    copy_head: bool = False           # also store the tied head, as some old checkpoints do
    decay_all: bool = False           # weight decay on every parameter, not on matrices only
    note: str = ""
    cls: str = ""                     # class of transformers, where it is no causal language model


GPT2 = dict(vocab_size=96, n_positions=24, n_embd=32, n_layer=2, n_head=4, n_inner=48,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
LLAMA = dict(vocab_size=96, hidden_size=32, intermediate_size=36, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
             tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
ROPE = LLAMA | dict(num_hidden_layers=1, intermediate_size=32)

# With head_dim 8 and theta 10000 the wavelengths are 6, 63, 628 and 6283 positions; these bounds
# (16 and 96) put one frequency in each of Llama 3's bands: kept, interpolated, divided by factor.
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=6.0,
              original_max_position_embeddings=96)

# The other families are smaller: what differs from Llama shows at any size.
SMALL = dict(vocab_size=48, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, max_position_embeddings=64, bos_token_id=0, eos_token_id=0)
GEMMA = SMALL | dict(head_dim=6, query_pre_attn_scalar=12, sliding_window=5, pad_token_id=0)
PHI3 = SMALL | dict(pad_token_id=0, num_key_value_heads=2)
NEOX = dict(SMALL, num_attention_heads=2, rotary_pct=0.5, max_position_embeddings=32)
del NEOX["num_key_value_heads"]
BLOOM = dict(vocab_size=48, hidden_size=18, n_layer=2, n_head=3, seq_length=64, bos_token_id=0, eos_token_id=0)
OPT = dict(vocab_size=48, hidden_size=16, ffn_dim=20, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=32,
           word_embed_proj_dim=16, dropout=0.0, bos_token_id=0, eos_token_id=0)
FALCON = dict(vocab_size=48, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, ffn_hidden_size=20,
              max_position_embeddings=64, bos_token_id=0, eos_token_id=0)
LONGROPE = dict(short_factor=[1.0, 1.1, 1.5, 2.0], long_factor=[1.0, 2.0, 3.0, 5.0])

BERT = dict(vocab_size=48, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=32,
            hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
# Six buckets to each side, three of them for more than one distance.
T5 = dict(vocab_size=48, d_model=16, d_kv=6, d_ff=20, num_layers=2, num_heads=2, relative_attention_num_buckets=12,
          relative_attention_max_distance=14, dropout_rate=0.1, decoder_start_token_id=0)

# Images of 4 patches: 4 tokens an image without the class token.
LLAVA = dict(image_token_index=47, text_config=dict(SMALL, model_type="llama", num_key_value_heads=1),
             vision_config=dict(model_type="clip_vision_model", hidden_size=12, intermediate_size=20, num_hidden_layers=3,
                                num_attention_heads=2, image_size=8, patch_size=4, projection_dim=8))

CASES = [
    Case("gpt2-tied", "gpt2", 5, GPT2 | dict(n_inner=None), note="gelu_new, tied head, feed-forward width by default"),
    Case("gpt2-untied", "gpt2", 4, GPT2 | dict(tie_word_embeddings=False), decay_all=True,
         note="own lm_head.weight; weight decay on every parameter"),
    Case("gpt2-bare-buffers", "gpt2", 4, GPT2 | dict(resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1),
         bare=True, mask_buffers="f32",
         edit_config=dict(architectures=["GPT2LMHeadModel"], n_ctx=24, dtype=None, torch_dtype=None,
                          transformers_version=None),
         note="the naming of the first GPT-2 files (h.0..., mask buffers stored); the config's dropouts are off here"),
    Case("gpt2-prefixed-buffers", "gpt2", 4,
         GPT2 | dict(activation_function="gelu", layer_norm_epsilon=1e-6, n_inner=32),
         mask_buffers="u8", copy_head=True,
         note="exact gelu; mask buffers and a copy of the tied head stored beside the transformer.* names"),
    Case("gpt2-gelu-tanh", "gpt2", 5, GPT2 | dict(activation_function="gelu_pytorch_tanh", n_inner=40), bare=True,
         note="a GPT2Model's own save: no prefix, no head"),
    Case("gpt2-bf16-sharded", "gpt2", 5, GPT2, dtype="bfloat16", shard="20KB", note="bf16 weights in shards"),
    Case("llama-mha-tied", "llama", 5, LLAMA | dict(tie_word_embeddings=True), note="tied head"),
    Case("llama-gqa-sharded", "llama", 4, LLAMA | dict(num_key_value_heads=2), shard="24KB",
         note="two key-value heads, own head, model.safetensors.index.json"),
    Case("llama-mqa", "llama", 5, LLAMA | dict(num_key_value_heads=1, rms_norm_eps=1e-5), note="one key-value head"),
    Case("llama-head-dim", "llama", 5, LLAMA | dict(num_key_value_heads=2, head_dim=12),
         note="explicit head_dim: heads x head_dim is 48, hidden is 32"),
    Case("llama-bare", "llama", 4, LLAMA | dict(tie_word_embeddings=True, num_key_value_heads=2), bare=True,
         edit_config=dict(head_dim=None),
         note="a LlamaModel's own save: no `model.` prefix, no head; a config without head_dim, as older 4.x wrote"),
    Case("llama-rope3-v4", "llama", 4, ROPE | dict(rope_theta=10000.0, rope_scaling=LLAMA3),
         note="Llama-3 scaling as rope_scaling + rope_theta"),
    Case("llama-rope3-v5", "llama", 5, ROPE | dict(rope_parameters=dict(LLAMA3, rope_theta=5000.0)),
         note="Llama-3 scaling as rope_parameters, another theta"),
    Case("llama-linear-v4", "llama", 4, ROPE | dict(rope_theta=10000.0, rope_scaling=dict(type="linear", factor=2.5)),
         edit_config=dict(rope_scaling=dict(type="linear", factor=2.5)),
         note="linear scaling with the old key `type`"),
    Case("llama-linear-v5", "llama", 5,
         ROPE | dict(rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=500000.0)),
         note="linear scaling as rope_parameters, theta 500000"),
    Case("llama-bias", "llama", 5, LLAMA | dict(num_key_value_heads=2, attention_bias=True, mlp_bias=True),
         note="biases on every projection"),
    Case("llama-bf16", "llama", 4, LLAMA | dict(num_key_value_heads=2), dtype="bfloat16",
         edit_config=dict(dtype=None, torch_dtype="bfloat16"), note="bf16 weights, 4.x `torch_dtype`"),
    Case("mistral-v4", "mistral", 4, SMALL | dict(sliding_window=5), note="tokens see 5 positions"),
    Case("mistral-v5", "mistral", 5, SMALL | dict(sliding_window=None, head_dim=6, tie_word_embeddings=True),
         note="no window, explicit head_dim, tied head"),
    Case("qwen2-v4", "qwen2", 4, SMALL | dict(use_sliding_window=False, tie_word_embeddings=True), note="no window"),
    Case("qwen2-v5", "qwen2", 5, SMALL | dict(use_sliding_window=True, sliding_window=5, max_window_layers=1),
         note="a window in the second layer, as layer_types"),
    Case("qwen3-v4", "qwen3", 4, SMALL | dict(head_dim=6, attention_bias=True), note="head_dim and biases"),
    Case("qwen3-v5", "qwen3", 5,
         SMALL | dict(head_dim=8, use_sliding_window=True, sliding_window=3, max_window_layers=0,
                      rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16,
                                           rope_theta=1000.0)),
         note="windows everywhere, yarn"),
    Case("gemma2-v4", "gemma2", 4, GEMMA, note="soft caps of scores and logits, a window in the first layer"),
    Case("gemma2-v5", "gemma2", 5,
         GEMMA | dict(attn_logit_softcapping=None, final_logit_softcapping=3.0, tie_word_embeddings=False,
                      layer_types=["full_attention", "sliding_attention"]),
         note="one cap alone, own head, the layers the other way round"),
    Case("gemma3-v4", "gemma3_text", 4,
         GEMMA | dict(sliding_window_pattern=2, rope_theta=5000.0, rope_local_base_freq=100.0,
                      rope_scaling=dict(rope_type="linear", factor=8.0)),
         note="two rotary bases, one of them scaled"),
    Case("gemma3-v5", "gemma3_text", 5,
         GEMMA | dict(layer_types=["sliding_attention", "full_attention"], final_logit_softcapping=4.0,
                      rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=50.0),
                                           full_attention=dict(rope_type="default", rope_theta=2000.0))),
         note="rope_parameters by kind of layer"),
    Case("phi3-v4", "phi3", 4,
         PHI3 | dict(original_max_position_embeddings=8, rope_scaling=dict(type="longrope", **LONGROPE), sliding_window=6),
         note="longrope beyond the original length, a window"),
    Case("phi3-v5", "phi3", 5,
         PHI3 | dict(num_key_value_heads=1, partial_rotary_factor=0.5, tie_word_embeddings=True),
         note="half of each head rotates"),
    Case("olmo2-v4", "olmo2", 4, SMALL, note="norms behind, norms over all of q and k"),
    Case("olmo2-v5", "olmo2", 5,
         SMALL | dict(num_key_value_heads=2, attention_bias=True, tie_word_embeddings=True,
                      rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=10000.0)),
         note="biases, dynamic scaling within the original length"),
    Case("gpt-neox-v4", "gpt_neox", 4, NEOX, note="attention and MLP side by side, half of each head rotates"),
    Case("gpt-neox-v5", "gpt_neox", 5,
         NEOX | dict(use_parallel_residual=False, attention_bias=False, hidden_act="gelu_new", tie_word_embeddings=True),
         note="one after the other, no biases in attention"),
    Case("bloom-v4", "bloom", 4, BLOOM, note="ALiBi of 3 heads, which are no power of two"),
    Case("bloom-v5", "bloom", 5, BLOOM | dict(n_head=2, apply_residual_connection_post_layernorm=True, tie_word_embeddings=False),
         note="the norms' results are what is added to; own head"),
    Case("glm4-v4", "glm4", 4, SMALL | dict(head_dim=8, attention_bias=True, pad_token_id=0),
         note="neighbours are pairs, half of each head rotates"),
    Case("glm4-v5", "glm4", 5,
         SMALL | dict(head_dim=12, attention_bias=False, pad_token_id=0,
                      rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.34)),
         note="a third of each head rotates"),
    Case("gemma-v4", "gemma", 4, SMALL | dict(head_dim=6, pad_token_id=3), note="norms scaled by 1 + w, a row that does not learn"),
    Case("gemma-v5", "gemma", 5, SMALL | dict(head_dim=8, attention_bias=True, tie_word_embeddings=False, pad_token_id=None),
         note="biases, own head"),
    Case("phi-v4", "phi", 4, SMALL, note="one norm for attention and MLP, half of each head rotates, a head with a bias"),
    Case("phi-v5", "phi", 5,
         SMALL | dict(num_key_value_heads=2, hidden_act="relu", tie_word_embeddings=True,
                      rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=10000.0, partial_rotary_factor=0.75)),
         note="tied head with a bias, three quarters rotate, linear"),
    Case("opt-v4", "opt", 4, OPT, note="positions from row 2, ReLU, padding in row 1"),
    Case("opt-v5", "opt", 5,
         OPT | dict(do_layer_norm_before=False, enable_bias=False, activation_function="gelu", tie_word_embeddings=False,
                    pad_token_id=None),
         note="norms behind the sums, no biases, own head"),
    Case("falcon-v4", "falcon", 4, FALCON, note="one key-value head, one norm"),
    Case("falcon-sequential", "falcon", 5, FALCON | dict(multi_query=False, parallel_attn=False, num_hidden_layers=1),
         note="a key and value for each head, the MLP after attention"),
    Case("stablelm-v4", "stablelm", 4, SMALL | dict(partial_rotary_factor=0.5, use_qkv_bias=True),
         note="LayerNorm, half of each head rotates, biases in q, k and v"),
    Case("stablelm-v5", "stablelm", 5, SMALL | dict(use_parallel_residual=True, tie_word_embeddings=True),
         note="attention and MLP behind one norm, a quarter of each head rotates"),
    Case("starcoder2-v4", "starcoder2", 4, SMALL | dict(sliding_window=5), note="a window, biases, tied head"),
    Case("starcoder2-v5", "starcoder2", 5,
         SMALL | dict(use_bias=False, num_key_value_heads=2, hidden_act="gelu", tie_word_embeddings=False),
         note="no biases, own head"),
    Case("cohere-v4", "cohere", 4, SMALL | dict(logit_scale=0.25), note="LayerNorm without a bias, neighbours are pairs, scaled logits"),
    Case("cohere-v5", "cohere", 5,
         SMALL | dict(attention_bias=True, logit_scale=1.5, tie_word_embeddings=False, pad_token_id=None), note="biases, own head"),
    Case("cohere2-v4", "cohere2", 4,
         SMALL | dict(sliding_window=5, layer_types=["sliding_attention", "full_attention"], pad_token_id=None),
         note="no positions in the second layer"),
    Case("cohere2-v5", "cohere2", 5,
         SMALL | dict(sliding_window=3, attention_bias=True, layer_types=["full_attention", "sliding_attention"]),
         note="no positions in the first layer, biases"),
    Case("granite-v4", "granite", 4,
         SMALL | dict(embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.7, logits_scaling=2.0),
         note="all four factors"),
    Case("granite-v5", "granite", 5, SMALL | dict(attention_multiplier=0.5, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
         note="scores alone, biases, tied head"),
    Case("opt-projected", "opt", 5, OPT | dict(word_embed_proj_dim=12, do_layer_norm_before=False),
         note="an embedding narrower than the residual stream, projected in and out; norms behind the sums"),
    Case("phi-norms", "phi", 5, SMALL | dict(qk_layernorm=True, num_key_value_heads=2), note="one layer norm for each head of q, and of k"),
    Case("stablelm-norms", "stablelm", 5, SMALL | dict(qk_layernorm=True, use_parallel_residual=True),
         note="a layer norm for each head of q and k, as modules of their own"),
    Case("cohere-norms", "cohere", 5, SMALL | dict(use_qk_norm=True, num_attention_heads=4, num_key_value_heads=2, logit_scale=0.5),
         note="a layer norm for each head of q and k, as rows of one scale"),
    Case("falcon-groups", "falcon", 5,
         FALCON | dict(new_decoder_architecture=True, num_kv_heads=2, hidden_size=24, num_attention_heads=6, bias=True),
         note="three queries for a key and value, a norm each for attention and MLP"),
    Case("glm-v4", "glm", 4, SMALL | dict(head_dim=8, pad_token_id=None), note="neighbours are pairs, gate and up in one layer"),
    Case("glm-v5", "glm", 5, SMALL | dict(head_dim=12, attention_bias=False, pad_token_id=2, tie_word_embeddings=True),
         note="no biases, tied head, a row that does not learn"),
    Case("bert-v4", "bert", 4, BERT | dict(hidden_act="relu", layer_norm_eps=1e-5, type_vocab_size=3), cls="BertForMaskedLM",
         note="ReLU, three kinds of token"),
    Case("bert-v5", "bert", 5, BERT, cls="BertForPreTraining", note="a next-sentence head, which is kept; dropout in the config"),
    Case("bert-pairs-v4", "bert", 4, BERT | dict(hidden_act="gelu_new", type_vocab_size=3), cls="BertForPreTraining",
         note="pairs of texts, and whether one follows the other, which is not known of every row; three kinds of token"),
    Case("bert-pairs-v5", "bert", 5, BERT | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), cls="BertForPreTraining",
         note="pairs of texts, and whether one follows the other"),
    Case("t5-v4", "t5", 4, T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=1),
         cls="T5ForConditionalGeneration", note="T5 1.1: GEGLU, own head; a shorter decoder"),
    Case("t5-v5", "t5", 5, T5 | dict(pad_token_id=3), cls="T5ForConditionalGeneration",
         note="T5 1.0: ReLU, tied and scaled head; dropout in the config"),
    Case("llava-v4", "llava", 4, LLAVA, cls="LlavaForConditionalGeneration",
         note="the last layer but one, without the class token; quick_gelu"),
    Case("llava-v5", "llava", 5,
         LLAVA | dict(vision_feature_layer=-1, vision_feature_select_strategy="full", multimodal_projector_bias=False,
                      projector_hidden_act="gelu_pytorch_tanh",
                      text_config=LLAVA["text_config"] | dict(num_key_value_heads=2, attention_bias=True, pad_token_id=0,
                                                              rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=5000.0)),
                      vision_config=LLAVA["vision_config"] | dict(num_channels=2, image_size=6, patch_size=3, hidden_act="gelu")),
         cls="LlavaForConditionalGeneration", note="the last layer with the class token; two colours, a row that does not learn"),
    Case("llava-several", "llava", 5,
         LLAVA | dict(vision_feature_layer=1, vision_config=LLAVA["vision_config"] | dict(num_hidden_layers=2)),
         cls="LlavaForConditionalGeneration", note="two images a row; the first layer's features"),
]

//! Which keys of a `config.json` the class of `transformers` for each family reads, 4.57.6 and 5.23.0 together, written by
//! `tests/oracles/reads.py table`: the family, other names of keys (`name=key`), and the keys, each with what it is where it is absent
//! (JSON, where both versions say the same). Do not edit.

/// A row a family.
#[rustfmt::skip]
pub const READS: &[(&str, &str, &str)] = &[
    ("gpt2", "hidden_size=n_embd max_position_embeddings=n_positions num_attention_heads=n_head num_hidden_layers=n_layer",
        "activation_function=\"gelu_new\" add_cross_attention=false attn_pdrop=0.1 chunk_size_feed_forward=0 compression_config \
         embd_pdrop=0.1 is_causal=true is_encoder_decoder=false layer_norm_epsilon=1e-05 n_embd=768 n_head=12 n_inner n_layer=12 \
         n_positions=1024 pad_token_id per_layer_config pruned_heads quantization_config reorder_and_upcast_attn=false resid_pdrop=0.1 \
         scale_attn_by_inverse_layer_idx=false scale_attn_weights=true tie_encoder_decoder=false tie_word_embeddings=true vocab_size=50257"),
    ("llama", "",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim=128 hidden_act=\"silu\" \
         hidden_size=4096 intermediate_size=11008 is_causal=true is_encoder_decoder=false max_position_embeddings=2048 mlp_bias=false \
         num_attention_heads=32 num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings pad_token_id \
         partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rms_norm_eps=1e-06 rope_parameters rope_scaling \
         rope_theta=10000.0 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=32000"),
    ("mistral", "",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim=128 hidden_act=\"silu\" hidden_size=4096 \
         intermediate_size=14336 is_causal=true is_encoder_decoder=false layer_types max_position_embeddings=131072 num_attention_heads=32 \
         num_hidden_layers=32 num_key_value_heads=8 original_max_position_embeddings pad_token_id partial_rotary_factor=1.0 \
         per_layer_config pruned_heads quantization_config rms_norm_eps=1e-06 rope_parameters rope_scaling rope_theta=10000.0 \
         sliding_window=4096 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=32000"),
    ("qwen2", "",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" hidden_size=4096 \
         intermediate_size=22016 is_causal=true is_encoder_decoder=false layer_types max_position_embeddings=32768 max_window_layers=28 \
         num_attention_heads=32 num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings pad_token_id \
         partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rms_norm_eps=1e-06 rope_parameters rope_scaling \
         rope_theta=10000.0 sliding_window tie_encoder_decoder=false tie_word_embeddings=false use_sliding_window=false vocab_size=151936"),
    ("qwen3", "",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim=128 hidden_act=\"silu\" \
         hidden_size=4096 intermediate_size=22016 is_causal=true is_encoder_decoder=false layer_types max_position_embeddings=32768 \
         max_window_layers=28 num_attention_heads=32 num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings \
         pad_token_id partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rms_norm_eps=1e-06 rope_parameters \
         rope_scaling rope_theta=10000.0 sliding_window tie_encoder_decoder=false tie_word_embeddings=false use_sliding_window=false \
         vocab_size=151936"),
    ("gemma", "",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim=256 \
         hidden_act=\"gelu_pytorch_tanh\" hidden_size=3072 intermediate_size=24576 is_causal=true is_encoder_decoder=false \
         max_position_embeddings=8192 num_attention_heads=16 num_hidden_layers=28 num_key_value_heads=16 original_max_position_embeddings \
         pad_token_id=0 partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rms_norm_eps=1e-06 rope_parameters \
         rope_scaling rope_theta=10000.0 tie_encoder_decoder=false tie_word_embeddings=true use_bidirectional_attention vocab_size=256000"),
    ("gemma2", "",
        "attention_bias=false attention_dropout=0.0 attn_logit_softcapping=50.0 chunk_size_feed_forward=0 compression_config \
         final_logit_softcapping=30.0 head_dim=256 hidden_activation=\"gelu_pytorch_tanh\" hidden_size=2304 intermediate_size=9216 \
         is_causal=true is_encoder_decoder=false layer_types max_position_embeddings=8192 num_attention_heads=8 num_hidden_layers=26 \
         num_key_value_heads=4 original_max_position_embeddings pad_token_id=0 partial_rotary_factor=1.0 per_layer_config pruned_heads \
         quantization_config query_pre_attn_scalar=256 rms_norm_eps=1e-06 rope_parameters rope_scaling rope_theta=10000.0 \
         sliding_window=4096 tie_encoder_decoder=false tie_word_embeddings=true use_bidirectional_attention vocab_size=256000"),
    ("gemma3_text", "",
        "_sliding_window_pattern=6 attention_bias=false attention_dropout=0.0 attn_logit_softcapping chunk_size_feed_forward=0 \
         compression_config final_logit_softcapping head_dim=256 hidden_activation=\"gelu_pytorch_tanh\" hidden_size=2304 \
         intermediate_size=9216 is_causal=true is_encoder_decoder=false layer_types max_position_embeddings=131072 num_attention_heads=8 \
         num_hidden_layers=26 num_key_value_heads=4 original_max_position_embeddings pad_token_id=0 partial_rotary_factor=1.0 \
         per_layer_config pruned_heads quantization_config query_pre_attn_scalar=256 rms_norm_eps=1e-06 rope_local_base_freq=10000.0 \
         rope_parameters rope_scaling rope_theta=1000000.0 sliding_window=4096 sliding_window_pattern tie_encoder_decoder=false \
         tie_word_embeddings=true use_bidirectional_attention=false vocab_size=262208"),
    ("phi", "",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config embd_pdrop=0.0 head_dim hidden_act=\"gelu_new\" hidden_size=2048 \
         intermediate_size=8192 is_causal=true is_encoder_decoder=false layer_norm_eps=1e-05 max_position_embeddings=2048 \
         num_attention_heads=32 num_hidden_layers=24 num_key_value_heads=32 original_max_position_embeddings pad_token_id \
         partial_rotary_factor=0.5 per_layer_config pruned_heads qk_layernorm=false quantization_config resid_pdrop=0.0 rope_parameters \
         rope_scaling rope_theta=10000.0 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=51200"),
    ("phi3", "",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" hidden_size=3072 \
         intermediate_size=8192 is_causal=true is_encoder_decoder=false max_position_embeddings=4096 num_attention_heads=32 \
         num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings=4096 pad_token_id=32000 partial_rotary_factor=1.0 \
         per_layer_config pruned_heads quantization_config resid_pdrop=0.0 rms_norm_eps=1e-05 rope_parameters rope_scaling \
         rope_theta=10000.0 sliding_window tie_encoder_decoder=false tie_word_embeddings=false vocab_size=32064"),
    ("olmo2", "",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" \
         hidden_size=4096 intermediate_size=11008 is_causal=true is_encoder_decoder=false max_position_embeddings=2048 \
         num_attention_heads=32 num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings pad_token_id=1 \
         partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rms_norm_eps=1e-05 rope_parameters rope_scaling \
         rope_theta=10000.0 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=50304"),
    ("gpt_neox", "",
        "attention_bias=true attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"gelu\" \
         hidden_dropout=0.0 hidden_size=6144 intermediate_size=24576 is_causal=true is_encoder_decoder=false layer_norm_eps=1e-05 \
         max_position_embeddings=2048 num_attention_heads=64 num_hidden_layers=44 original_max_position_embeddings \
         partial_rotary_factor=0.25 per_layer_config pruned_heads quantization_config rms_norm_eps rope_parameters rope_scaling \
         rope_theta=10000 rotary_emb_base=10000 rotary_pct=0.25 tie_encoder_decoder=false tie_word_embeddings=false \
         use_parallel_residual=true vocab_size=50432"),
    ("opt", "",
        "_remove_final_layer_norm=false activation_function=\"relu\" attention_dropout=0.0 chunk_size_feed_forward=0 compression_config \
         do_layer_norm_before=true dropout=0.1 enable_bias=true ffn_dim=3072 hidden_size=768 is_causal=true is_encoder_decoder=false \
         layer_norm_elementwise_affine=true layerdrop=0.0 max_position_embeddings=2048 num_attention_heads=12 num_hidden_layers=12 \
         pad_token_id=1 per_layer_config pruned_heads quantization_config tie_encoder_decoder=false tie_word_embeddings=true \
         vocab_size=50272 word_embed_proj_dim=768"),
    ("bloom", "n_embed=hidden_size num_attention_heads=n_head num_hidden_layers=n_layer",
        "apply_residual_connection_post_layernorm=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config \
         hidden_dropout=0.0 hidden_size=64 is_causal=true is_encoder_decoder=false layer_norm_epsilon=1e-05 n_head=8 n_layer=2 \
         per_layer_config pretraining_tp=1 pruned_heads quantization_config slow_but_exact=false tie_encoder_decoder=false \
         tie_word_embeddings=true vocab_size=250880"),
    ("falcon", "n_embed=hidden_size",
        "activation=\"gelu\" alibi=false attention_dropout=0.0 bias=false chunk_size_feed_forward=0 compression_config ffn_hidden_size=18176 \
         head_dim hidden_dropout=0.0 hidden_size=4544 is_causal=true is_encoder_decoder=false layer_norm_epsilon=1e-05 \
         max_position_embeddings=2048 multi_query=true new_decoder_architecture=false num_attention_heads=71 num_hidden_layers=32 \
         num_kv_heads=71 num_ln_in_parallel_attn original_max_position_embeddings parallel_attn=true partial_rotary_factor=1.0 \
         per_layer_config pruned_heads quantization_config rope_parameters rope_scaling rope_theta=10000.0 tie_encoder_decoder=false \
         tie_word_embeddings=true vocab_size=65024"),
    ("stablelm", "",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" hidden_dropout=0.0 hidden_size=2560 \
         intermediate_size=6912 is_causal=true is_encoder_decoder=false layer_norm_eps=1e-05 max_position_embeddings=4096 \
         num_attention_heads=32 num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings pad_token_id \
         partial_rotary_factor=0.25 per_layer_config pruned_heads qk_layernorm=false quantization_config rope_parameters rope_scaling \
         rope_theta=10000 tie_encoder_decoder=false tie_word_embeddings=false use_parallel_residual=false use_qkv_bias=false \
         vocab_size=50304"),
    ("starcoder2", "",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config embedding_dropout=0.0 head_dim hidden_act=\"gelu_pytorch_tanh\" \
         hidden_size=3072 intermediate_size=12288 is_causal=true is_encoder_decoder=false max_position_embeddings=4096 norm_epsilon=1e-05 \
         num_attention_heads=24 num_hidden_layers=30 num_key_value_heads=2 original_max_position_embeddings pad_token_id \
         partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config residual_dropout=0.0 rope_parameters rope_scaling \
         rope_theta=10000.0 sliding_window tie_encoder_decoder=false tie_word_embeddings=true use_bias=true vocab_size=49152"),
    ("cohere", "",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" \
         hidden_size=8192 intermediate_size=22528 is_causal=true is_encoder_decoder=false layer_norm_eps=1e-05 logit_scale=0.0625 \
         max_position_embeddings=8192 num_attention_heads=64 num_hidden_layers=40 num_key_value_heads=64 original_max_position_embeddings \
         pad_token_id=0 partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rope_parameters rope_scaling \
         rope_theta=10000.0 tie_encoder_decoder=false tie_word_embeddings=true use_qk_norm=false vocab_size=256000"),
    ("cohere2", "",
        "_sliding_window_pattern=4 attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim=128 \
         hidden_act=\"silu\" hidden_size=8192 intermediate_size=22528 is_causal=true is_encoder_decoder=false layer_norm_eps=1e-05 \
         layer_types logit_scale=0.0625 max_position_embeddings=8192 num_attention_heads=64 num_hidden_layers=40 num_key_value_heads=64 \
         original_max_position_embeddings pad_token_id=0 partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config \
         rope_parameters rope_scaling rope_theta=10000.0 sliding_window=4096 sliding_window_pattern tie_encoder_decoder=false \
         tie_word_embeddings=true vocab_size=256000"),
    ("granite", "",
        "attention_bias=false attention_dropout=0.0 attention_multiplier=1.0 chunk_size_feed_forward=0 compression_config \
         embedding_multiplier=1.0 head_dim hidden_act=\"silu\" hidden_size=4096 intermediate_size=11008 is_causal=true \
         is_encoder_decoder=false logits_scaling=1.0 max_position_embeddings=2048 mlp_bias=false num_attention_heads=32 \
         num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings pad_token_id partial_rotary_factor=1.0 \
         per_layer_config pruned_heads quantization_config residual_multiplier=1.0 rms_norm_eps=1e-06 rope_parameters rope_scaling \
         rope_theta=10000.0 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=32000"),
    ("glm", "",
        "attention_bias=true attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim=128 hidden_act=\"silu\" \
         hidden_size=4096 intermediate_size=13696 is_causal=true is_encoder_decoder=false max_position_embeddings=131072 \
         num_attention_heads=32 num_hidden_layers=40 num_key_value_heads=2 original_max_position_embeddings pad_token_id=151329 \
         partial_rotary_factor=0.5 per_layer_config pruned_heads quantization_config rms_norm_eps=1.5625e-07 rope_parameters rope_scaling \
         rope_theta=10000.0 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=151552"),
    ("glm4", "",
        "attention_bias=true attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim=128 hidden_act=\"silu\" \
         hidden_size=4096 intermediate_size=13696 is_causal=true is_encoder_decoder=false max_position_embeddings=131072 \
         num_attention_heads=32 num_hidden_layers=40 num_key_value_heads=2 original_max_position_embeddings pad_token_id=151329 \
         partial_rotary_factor=0.5 per_layer_config pruned_heads quantization_config rms_norm_eps=1.5625e-07 rope_parameters rope_scaling \
         rope_theta=10000.0 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=151552"),
    ("bert", "",
        "add_cross_attention=false attention_probs_dropout_prob=0.1 chunk_size_feed_forward=0 compression_config embedding_size \
         hidden_act=\"gelu\" hidden_dropout_prob=0.1 hidden_size=768 intermediate_size=3072 is_causal=true is_decoder=false \
         is_encoder_decoder=false layer_norm_eps=1e-12 max_position_embeddings=512 num_attention_heads=12 num_hidden_layers=12 \
         pad_token_id=0 per_layer_config position_embedding_type=\"absolute\" pruned_heads quantization_config tie_encoder_decoder=false \
         tie_word_embeddings=true type_vocab_size=2 vocab_size=30522"),
    ("t5", "head_dim=d_kv hidden_size=d_model num_attention_heads=num_heads num_hidden_layers=num_layers",
        "chunk_size_feed_forward=0 compression_config d_ff=2048 d_kv=64 d_model=512 decoder_start_token_id dense_act_fn=\"relu\" \
         dropout_rate=0.1 feed_forward_proj=\"relu\" is_causal=true is_decoder=false is_encoder_decoder=true is_gated_act=false \
         layer_norm_epsilon=1e-06 num_decoder_layers=6 num_heads=8 num_layers=6 pad_token_id=0 per_layer_config pruned_heads \
         quantization_config relative_attention_max_distance=128 relative_attention_num_buckets=32 scale_decoder_outputs=true \
         tie_encoder_decoder=false tie_word_embeddings=true vocab_size=32128"),
    ("llava", "image_token_id=image_token_index",
        "chunk_size_feed_forward=0 compression_config hidden_size image_token_index=32000 is_encoder_decoder=false \
         multimodal_projector_bias=true per_layer_config projector_hidden_act=\"gelu\" pruned_heads quantization_config text_config \
         tie_encoder_decoder=false tie_word_embeddings=false vision_config vision_feature_layer=-2 \
         vision_feature_select_strategy=\"default\" vocab_size"),
    ("clip_vision_model", "",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config hidden_act=\"quick_gelu\" hidden_size=768 image_size=224 \
         intermediate_size=3072 is_encoder_decoder=false layer_norm_eps=1e-05 num_attention_heads=12 num_channels=3 num_hidden_layers=12 \
         patch_size=32 per_layer_config pruned_heads quantization_config tie_encoder_decoder=false"),
    ("arcee", "",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim=80 hidden_act=\"relu2\" \
         hidden_size=2560 intermediate_size=18432 is_causal=true is_encoder_decoder=false max_position_embeddings=4096 mlp_bias=false \
         num_attention_heads=32 num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings pad_token_id \
         partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rms_norm_eps=1e-05 rope_parameters rope_scaling \
         rope_theta=10000.0 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=32000"),
    ("seed_oss", "",
        "attention_bias=true attention_dropout=0.1 attention_out_bias=false chunk_size_feed_forward=0 compression_config head_dim=128 \
         hidden_act=\"silu\" hidden_size=4096 intermediate_size=27648 is_causal=true is_encoder_decoder=false \
         max_position_embeddings=524288 mlp_bias=false num_attention_heads=80 num_hidden_layers=64 num_key_value_heads=8 \
         original_max_position_embeddings pad_token_id=1 partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config \
         residual_dropout=0.1 rms_norm_eps=1e-06 rope_parameters rope_scaling rope_theta=10000.0 tie_encoder_decoder=false \
         tie_word_embeddings=false vocab_size=155136"),
    ("smollm3", "",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" \
         hidden_size=2048 intermediate_size=11008 is_causal=true is_encoder_decoder=false layer_types max_position_embeddings=32768 \
         mlp_bias=false no_rope_layer_interval=4 no_rope_layers num_attention_heads=16 num_hidden_layers=36 num_key_value_heads=4 \
         original_max_position_embeddings pad_token_id=128004 partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config \
         rms_norm_eps=1e-06 rope_parameters rope_scaling rope_theta=2000000.0 sliding_window tie_encoder_decoder=false \
         tie_word_embeddings=true use_sliding_window=false vocab_size=128256"),
    ("ernie4_5", "",
        "chunk_size_feed_forward=0 compression_config head_dim=128 hidden_act=\"silu\" hidden_size=1024 intermediate_size=3072 \
         is_causal=true is_encoder_decoder=false max_position_embeddings=131072 num_attention_heads=16 num_hidden_layers=18 \
         num_key_value_heads=2 original_max_position_embeddings pad_token_id=0 partial_rotary_factor=1.0 per_layer_config pruned_heads \
         quantization_config rms_norm_eps=1e-05 rope_parameters rope_scaling rope_theta=500000.0 tie_encoder_decoder=false \
         tie_word_embeddings=true use_bias=false vocab_size=103424"),
    ("hunyuan_v1_dense", "",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" \
         hidden_size=4096 intermediate_size=11008 is_causal=true is_encoder_decoder=false max_position_embeddings=2048 \
         num_attention_heads=32 num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings pad_token_id=0 \
         partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rms_norm_eps=1e-05 rope_parameters rope_scaling \
         rope_theta=10000.0 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=290943"),
    ("olmo3", "",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" \
         hidden_size=4096 intermediate_size=11008 is_causal=true is_encoder_decoder=false layer_types max_position_embeddings=2048 \
         num_attention_heads=32 num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings pad_token_id=1 \
         partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rms_norm_eps=1e-05 rope_parameters rope_scaling \
         rope_theta=10000.0 sliding_window=4096 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=50304"),
    ("exaone4", "",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" hidden_size=4096 \
         intermediate_size=16384 is_causal=true is_encoder_decoder=false layer_types max_position_embeddings=2048 num_attention_heads=32 \
         num_hidden_layers=32 num_key_value_heads=32 original_max_position_embeddings pad_token_id partial_rotary_factor=1.0 \
         per_layer_config pruned_heads quantization_config rms_norm_eps=1e-05 rope_parameters rope_scaling rope_theta=10000.0 \
         sliding_window=4096 sliding_window_pattern=4 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=102400"),
    ("nemotron", "",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim=128 hidden_act=\"relu2\" \
         hidden_size=6144 intermediate_size=24576 is_causal=true is_encoder_decoder=false max_position_embeddings=4096 mlp_bias=false \
         norm_eps=1e-05 num_attention_heads=48 num_hidden_layers=32 num_key_value_heads pad_token_id partial_rotary_factor=0.5 \
         per_layer_config pruned_heads quantization_config rope_parameters rope_scaling rope_theta=10000.0 tie_encoder_decoder=false \
         tie_word_embeddings=false vocab_size=256000"),
    ("ministral", "",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" hidden_size=4096 \
         intermediate_size=14336 is_causal=true is_encoder_decoder=false layer_types max_position_embeddings=131072 num_attention_heads=32 \
         num_hidden_layers=32 num_key_value_heads=8 original_max_position_embeddings pad_token_id partial_rotary_factor=1.0 \
         per_layer_config pruned_heads quantization_config rms_norm_eps=1e-06 rope_parameters rope_scaling rope_theta=10000.0 \
         sliding_window=4096 tie_encoder_decoder=false tie_word_embeddings=false vocab_size=32000"),
    ("ministral3", "",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim=128 \
         hidden_act=\"silu\" hidden_size=4096 intermediate_size=14336 is_causal=true is_encoder_decoder=false layer_types \
         max_position_embeddings=262144 num_attention_heads=32 num_hidden_layers=34 num_key_value_heads=8 original_max_position_embeddings \
         pad_token_id=11 partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rms_norm_eps=1e-05 rope_parameters \
         rope_scaling rope_theta sliding_window tie_encoder_decoder tie_word_embeddings=false vocab_size=131072"),
    ("gptj", "hidden_size=n_embd max_position_embeddings=n_positions num_attention_heads=n_head num_hidden_layers=n_layer",
        "activation_function=\"gelu_new\" attn_pdrop=0.0 chunk_size_feed_forward=0 compression_config embd_pdrop=0.0 is_causal=true \
         is_encoder_decoder=false layer_norm_epsilon=1e-05 n_embd=4096 n_head=16 n_inner n_layer=28 n_positions=2048 per_layer_config \
         pruned_heads quantization_config resid_pdrop=0.0 rotary_dim=64 tie_encoder_decoder=false tie_word_embeddings=false \
         vocab_size=50400"),
    ("mt5", "head_dim=d_kv hidden_size=d_model num_attention_heads=num_heads num_hidden_layers=num_layers",
        "chunk_size_feed_forward=0 compression_config d_ff=1024 d_kv=64 d_model=512 decoder_start_token_id=0 dense_act_fn=\"gelu_new\" \
         dropout_rate=0.1 feed_forward_proj=\"gated-gelu\" is_causal=true is_decoder=false is_encoder_decoder=true is_gated_act=true \
         layer_norm_epsilon=1e-06 num_decoder_layers=8 num_heads=6 num_layers=8 pad_token_id=0 per_layer_config pruned_heads \
         quantization_config relative_attention_max_distance=128 relative_attention_num_buckets=32 tie_encoder_decoder=false \
         tie_word_embeddings vocab_size=250112"),
    ("roberta", "",
        "add_cross_attention=false attention_probs_dropout_prob=0.1 chunk_size_feed_forward=0 compression_config embedding_size \
         hidden_act=\"gelu\" hidden_dropout_prob=0.1 hidden_size=768 intermediate_size=3072 is_causal=true is_decoder=false \
         is_encoder_decoder=false layer_norm_eps=1e-12 max_position_embeddings=512 num_attention_heads=12 num_hidden_layers=12 \
         pad_token_id=1 per_layer_config position_embedding_type=\"absolute\" pruned_heads quantization_config tie_encoder_decoder=false \
         tie_word_embeddings=true type_vocab_size=2 vocab_size=50265"),
    ("mixtral", "num_experts=num_local_experts",
        "attention_dropout=0.0 chunk_size_feed_forward=0 compression_config head_dim hidden_act=\"silu\" hidden_size=4096 \
         intermediate_size=14336 is_causal=true is_encoder_decoder=false max_position_embeddings=131072 num_attention_heads=32 \
         num_experts_per_tok=2 num_hidden_layers=32 num_key_value_heads=8 num_local_experts=8 original_max_position_embeddings \
         output_router_logits=false pad_token_id partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config \
         rms_norm_eps=1e-05 rope_parameters rope_scaling rope_theta=1000000.0 router_aux_loss_coef=0.001 router_jitter_noise=0.0 \
         sliding_window tie_encoder_decoder=false tie_word_embeddings=false vocab_size=32000"),
    ("qwen3_moe", "num_local_experts=num_experts",
        "attention_bias=false attention_dropout=0.0 chunk_size_feed_forward=0 compression_config decoder_sparse_step=1 head_dim \
         hidden_act=\"silu\" hidden_size=2048 intermediate_size=6144 is_causal=true is_encoder_decoder=false max_position_embeddings=32768 \
         mlp_only_layers moe_intermediate_size=768 norm_topk_prob=false num_attention_heads=32 num_experts=128 num_experts_per_tok=8 \
         num_hidden_layers=24 num_key_value_heads=4 original_max_position_embeddings output_router_logits=false pad_token_id \
         partial_rotary_factor=1.0 per_layer_config pruned_heads quantization_config rms_norm_eps=1e-06 rope_parameters rope_scaling \
         rope_theta=10000.0 router_aux_loss_coef=0.001 sliding_window tie_encoder_decoder=false tie_word_embeddings=false \
         use_sliding_window=false vocab_size=151936"),
    ("xlm-roberta", "",
        "add_cross_attention=false attention_probs_dropout_prob=0.1 chunk_size_feed_forward=0 compression_config embedding_size \
         hidden_act=\"gelu\" hidden_dropout_prob=0.1 hidden_size=768 intermediate_size=3072 is_causal=true is_decoder=false \
         is_encoder_decoder=false layer_norm_eps=1e-12 max_position_embeddings=512 num_attention_heads=12 num_hidden_layers=12 \
         pad_token_id=1 per_layer_config position_embedding_type=\"absolute\" pruned_heads quantization_config tie_encoder_decoder=false \
         tie_word_embeddings=true type_vocab_size=2 vocab_size=30522"),
];

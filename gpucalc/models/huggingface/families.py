"""What distinguishes the families of language decoders: class defaults, biases, norms, key names.

Each row states the conventions of the released modelling code of that class; a configuration
overrides them where it has a key for it. A class that is not here is not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Conventions of a decoder class. A bias is False, True, or the configuration key that switches it."""

    gated: bool = True
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    bias_default: bool = False  # value of a switching key that is absent
    norm_terms: int = 1  # 1 scale only, 2 scale and bias
    norms: int = 2
    final_norm: bool = True
    qk_norm: str = ""  # "", head, full, each
    qk_norm_key: str = ""  # key that switches it
    qk_norm_default: bool = False
    tied: bool = False
    head_bias: bool = False
    positions: int = -1  # -1 none; otherwise learned, with that many rows added
    embedding_norm: bool = False
    ffn_rule: int = 0  # width when the key is absent, in multiples of hidden
    moe: str = ""  # "" dense class; "own" experts have their own width key; "ffn" intermediate_size is theirs
    expert_bias: bool = False
    router_bias: bool = False
    sinks: bool = False
    shared_gate: bool = False
    mla: bool = False
    window_default: int = 0
    pattern: int = 0  # every pattern-th layer is full, the others windowed
    indexer: bool = False
    output_gate: bool = False
    falcon_norms: bool = False
    ffn_doubled: bool = False  # the configuration states gate and up together
    legacy_multi_query: bool = False  # multi_query: true means one kv head unless new_decoder_architecture


_ALL_BIASES = {"qkv_bias": True, "out_bias": True, "mlp_bias": True, "norm_terms": 2, "gated": False}

LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
PLAIN = Family()
_DEEPSEEK = Family(moe="own", mla=True, qkv_bias="attention_bias", out_bias="attention_bias")

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": Family(window_default=4096),
    "MixtralForCausalLM": Family(moe="ffn"),
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen2MoeForCausalLM": Family(qkv_bias=True, moe="own", shared_gate=True),
    "Qwen3ForCausalLM": Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head"),
    "Qwen3MoeForCausalLM": Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head", moe="own"),
    "GemmaForCausalLM": Family(tied=True),
    "Gemma2ForCausalLM": Family(tied=True, norms=4, window_default=4096, pattern=2),
    "Gemma3ForCausalLM": Family(tied=True, norms=4, qk_norm="head", window_default=4096, pattern=6),
    "PhiForCausalLM": Family(**_ALL_BIASES, norms=1, head_bias=True, ffn_rule=4),  # type: ignore[arg-type]
    "Phi3ForCausalLM": PLAIN,
    "DeepseekForCausalLM": Family(moe="own", qkv_bias="attention_bias", out_bias="attention_bias"),
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "Glm4MoeForCausalLM": Family(moe="own", qkv_bias="attention_bias", qk_norm="head", qk_norm_key="use_qk_norm"),
    "GptOssForCausalLM": Family(
        moe="ffn",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        bias_default=True,
        sinks=True,
        expert_bias=True,
        router_bias=True,
        window_default=128,
        pattern=2,
    ),
    "MiniMaxM2ForCausalLM": Family(moe="ffn", qk_norm="full", qk_norm_key="use_qk_norm", qk_norm_default=True),
    "GPT2LMHeadModel": Family(**_ALL_BIASES, tied=True, positions=0, ffn_rule=4),  # type: ignore[arg-type]
    "GPTBigCodeForCausalLM": Family(
        **_ALL_BIASES,  # type: ignore[arg-type]
        tied=True,
        positions=0,
        ffn_rule=4,
        legacy_multi_query=True,
    ),
    "GPTJForCausalLM": Family(gated=False, mlp_bias=True, norm_terms=2, norms=1, head_bias=True, ffn_rule=4),
    "GPTNeoXForCausalLM": Family(
        gated=False,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        bias_default=True,
        mlp_bias=True,
        norm_terms=2,
    ),
    "OPTForCausalLM": Family(**_ALL_BIASES, tied=True, positions=2),  # type: ignore[arg-type]
    "BloomForCausalLM": Family(**_ALL_BIASES, tied=True, embedding_norm=True, ffn_rule=4),  # type: ignore[arg-type]
    "FalconForCausalLM": Family(
        gated=False,
        qkv_bias="bias",
        out_bias="bias",
        mlp_bias="bias",
        norm_terms=2,
        tied=True,
        ffn_rule=4,
        falcon_norms=True,
        legacy_multi_query=True,
    ),
    "MPTForCausalLM": Family(gated=False, tied=True, ffn_rule=4),
    "Starcoder2ForCausalLM": Family(
        gated=False,
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        bias_default=True,
        norm_terms=2,
        tied=True,
    ),
    "DbrxForCausalLM": Family(moe="ffn"),
    "Grok1ForCausalLM": Family(norms=4, moe="ffn", tied=True),
    "CohereForCausalLM": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norms=1,
        tied=True,
        qk_norm="each",
        qk_norm_key="use_qk_norm",
    ),
    "OlmoForCausalLM": Family(norms=0, final_norm=False, qkv_bias="attention_bias", out_bias="attention_bias"),
    "Olmo2ForCausalLM": Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="full"),
    "NemotronForCausalLM": Family(
        gated=False, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", norm_terms=2
    ),
    "BaichuanForCausalLM": PLAIN,
    "BaiChuanForCausalLM": PLAIN,
    "ChatGLMModel": Family(qkv_bias="add_qkv_bias", out_bias="add_bias_linear", mlp_bias="add_bias_linear"),
    "StableLmForCausalLM": Family(qkv_bias="use_qkv_bias", norm_terms=2),
    "MiniCPMForCausalLM": Family(tied=True),
    "SeedOssForCausalLM": Family(
        qkv_bias="attention_bias", bias_default=True, out_bias="attention_out_bias", mlp_bias="mlp_bias"
    ),
    "MiMoForCausalLM": Family(qkv_bias="attention_bias", bias_default=True),
    "InternLMForCausalLM": Family(qkv_bias="bias", out_bias="bias", bias_default=True),
    "InternLM2ForCausalLM": Family(qkv_bias="bias", out_bias="bias", bias_default=True),
    "QWenLMHeadModel": Family(qkv_bias=True, ffn_doubled=True),
    "GraniteForCausalLM": LLAMA,
    "SmolLM3ForCausalLM": LLAMA,
    "OlmoeForCausalLM": Family(moe="ffn", qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="full"),
    "Olmo3ForCausalLM": Family(
        qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="full", window_default=4096, pattern=4
    ),
    "Cohere2ForCausalLM": Family(
        qkv_bias="attention_bias", out_bias="attention_bias", norms=1, tied=True, window_default=4096, pattern=4
    ),
    "GlmForCausalLM": Family(qkv_bias="attention_bias"),
    "Glm4ForCausalLM": Family(qkv_bias="attention_bias", norms=4),
    "Glm4MoeLiteForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": Family(
        moe="own", mla=True, qkv_bias="attention_bias", out_bias="attention_bias", indexer=True
    ),
    "Dots1ForCausalLM": Family(moe="own", qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="head"),
    "GPTNeoForCausalLM": Family(
        gated=False,
        out_bias=True,
        mlp_bias=True,
        norm_terms=2,
        tied=True,
        positions=0,
        ffn_rule=4,
        window_default=256,
        pattern=2,
    ),
    "ArceeForCausalLM": Family(gated=False, qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    "InternLM3ForCausalLM": Family(qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias"),
    "Ministral3ForCausalLM": PLAIN,
    "Llama4ForCausalLM": Family(
        moe="ffn", qkv_bias="attention_bias", out_bias="attention_bias", window_default=8192, pattern=4
    ),
}

# classes of the same structure under another name
CLASS_ALIASES: dict[str, str] = {
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "MptForCausalLM": "MPTForCausalLM",
    "LLaMAForCausalLM": "LlamaForCausalLM",
    "RWForCausalLM": "FalconForCausalLM",
    "Grok1ModelForCausalLM": "Grok1ForCausalLM",
    "StableLMEpochForCausalLM": "StableLmForCausalLM",
    "YiForCausalLM": "LlamaForCausalLM",
    "KimiK2ForCausalLM": "DeepseekV3ForCausalLM",
    "ChatGLMForConditionalGeneration": "ChatGLMModel",
    "GPTNeoXModel": "GPTNeoXForCausalLM",
}

# model_type → class, for files without `architectures` and for nested text configurations
MODEL_TYPES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen": "QWenLMHeadModel",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
    "qwen2_5_omni_text": "Qwen2ForCausalLM",
    "qwen3_omni_moe_text": "Qwen3MoeForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "phi": "PhiForCausalLM",
    "phi-msft": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "deepseek": "DeepseekForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "glm_moe_dsa": "GlmMoeDsaForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
    "gptj": "GPTJForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "opt": "OPTForCausalLM",
    "bloom": "BloomForCausalLM",
    "falcon": "FalconForCausalLM",
    "mpt": "MPTForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "dbrx": "DbrxForCausalLM",
    "grok-1": "Grok1ForCausalLM",
    "cohere": "CohereForCausalLM",
    "olmo": "OlmoForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "nemotron": "NemotronForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "nemotron-nas": "DeciLMForCausalLM",
    "baichuan": "BaichuanForCausalLM",
    "chatglm": "ChatGLMModel",
    "stablelm": "StableLmForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "mimo": "MiMoForCausalLM",
    "internlm": "InternLMForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "granite": "GraniteForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    "glm4v_moe_text": "Glm4MoeForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "dots1": "Dots1ForCausalLM",
    "gpt_neo": "GPTNeoForCausalLM",
    "mamba2": "Mamba2ForCausalLM",
    "falcon_mamba": "FalconMambaForCausalLM",
    "rwkv": "RwkvForCausalLM",
    "roberta": "RobertaForMaskedLM",
    "llama4_text": "Llama4ForCausalLM",
    "mamba": "MambaForCausalLM",
    "jamba": "JambaForCausalLM",
    "t5": "T5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "bert": "BertForMaskedLM",
    "vit": "ViTForImageClassification",
    "clip": "CLIPModel",
    "megatron-gpt": "MegatronGPTModel",
    "apertus": "ApertusForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "bamba": "BambaForCausalLM",
    "falcon_h1": "FalconH1ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "bailing_hybrid": "BailingHybridForCausalLM",
    "zamba2": "Zamba2ForCausalLM",
    "rwkv7": "RWKV7ForCausalLM",
    "deepseek_v4": "DeepseekV4ForCausalLM",
    "arcee": "ArceeForCausalLM",
    "internlm3": "InternLM3ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_moe": "HunYuanMoEV1ForCausalLM",
    "bailing_moe": "BailingMoeForCausalLM",
    "bailing_moe_v2": "BailingMoeV2ForCausalLM",
    "longcat_flash": "LongcatFlashForCausalLM",
    "step3p5": "Step3p5ForCausalLM",
    "mimo_v2_flash": "MiMoV2FlashForCausalLM",
    "minimax_m3": "MiniMaxM3ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
}

package tracer

const nativeArch = 0xc00000b7 // AUDIT_ARCH_AARCH64

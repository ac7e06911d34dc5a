package supervisor

// memfdCreate is the number of memfd_create(2).
const memfdCreate = "279"

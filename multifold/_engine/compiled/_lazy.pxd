from multifold._engine.compiled cimport callers, columns

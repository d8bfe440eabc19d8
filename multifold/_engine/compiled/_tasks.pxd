from multifold._engine.compiled cimport columns, coroutines

from multifold._compiled cimport columns

using NamedPolicies = PolicyList<Complete, Forgotten, Short, Elsewhere>;

using NamedPolicies = PolicyList<Complete, Forgotten, Barred, Short, Elsewhere>;

-- Calls a function of ours.
SELECT * FROM {function}{arguments}

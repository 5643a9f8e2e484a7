"""The objects that the stages exchange: episodes, requests for samples, settings of the loss, and seeds. It loads no
torch.
"""

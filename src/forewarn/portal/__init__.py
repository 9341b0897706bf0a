"""The portal: pages for people who would rather look than read. Server-rendered, useful without JavaScript, kept live
with it. It shows what the API shows and asks through the API's own handlers: no rule about the fleet lives here.
"""
